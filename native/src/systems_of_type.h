/* Small systems of linear equations for one type: kernels_of_type.h includes this; systems.h solves them. */

/* Read LANES systems; where fewer are left, the last one is read again. */
INLINE void OF_TYPE(read_systems)(const REAL *a, const REAL *b, word count, word n, word m, int transposed, double *made)
{
    const word width = n + m;
    for (int l = 0; l < LANES; l++) {
        const word which = l < count ? l : count - 1;
        const REAL *from = a + which * n * n;
        for (word i = 0; i < n; i++)
            for (word j = 0; j < n; j++)
                made[(i * width + j) * LANES + l] = transposed ? from[j * n + i] : from[i * n + j];
        for (word i = 0; b && i < n; i++)
            for (word j = 0; j < m; j++)
                made[(i * width + n + j) * LANES + l] = b[(which * n + i) * m + j];
    }
    for (word i = 0; !b && i < n; i++)
        for (word j = 0; j < m; j++)
            for (int l = 0; l < LANES; l++)
                made[(i * width + n + j) * LANES + l] = i == j;
}

/* Arrays: matrices, right sides, solutions, one number: 1 where a matrix may be singular, and there are no solutions.
 * Lengths: matrices, rows, columns of the right sides. Numbers: whether matrices are transposed, and whether the right
 * sides are not read, but the identity. */
KERNEL(solve)
{
    const double *numbers = (const double *)context;
    const word n = dims[1], m = dims[2];
    const REAL *a = (const REAL *)data[0], *b = numbers[1] != 0 ? 0 : (const REAL *)data[1];
    ALIGNED double rows[MOST_ROWS * 2 * MOST_ROWS * LANES];
    UNUSED;
    *(REAL *)data[3] = 0;
    if (n < 1 || n > MOST_ROWS || m > MOST_ROWS)
        return 1;
    for (word start = 0; start < dims[0]; start += LANES) {
        const word count = dims[0] - start < LANES ? dims[0] - start : LANES;
        OF_TYPE(read_systems)(a + start * n * n, b ? b + start * n * m : 0, count, n, m, numbers[0] != 0, rows);
        if (eliminate(rows, n, m)) {
            *(REAL *)data[3] = 1;
            return 0;
        }
        substitute(rows, n, m);
        for (word l = 0; l < count; l++) {
            REAL *x = (REAL *)data[2] + (start + l) * n * m;
            for (word i = 0; i < n; i++)
                for (word j = 0; j < m; j++)
                    x[i * m + j] = (REAL)rows[(i * (n + m) + n + j) * LANES + l];
        }
    }
    return 0;
}
