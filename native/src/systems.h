/* Small systems of linear equations, LANES at a time: what has one place in each lies side by side, row by row, first the
 * n numbers of the matrix, then the m of the right sides. All is computed in double, as numpy.linalg does. */

/* Eliminate below the diagonal, with the row of the largest number as pivot: of equal ones the first, as LAPACK has it.
 * Return whether a pivot is so small that it may be 0 but for roundings, or is no number. */
FOR_EACH_PROCESSOR static int eliminate(double *rows, word n, word m)
{
    const word width = n + m;
    const double tiny = (double)(16 * n) * DBL_EPSILON;
    uint64_t doubtful[LANES] = {0}, any = 0;
    double most[LANES] = {0};
    for (word i = 0; i < n; i++)
        for (word j = 0; j < n; j++)
            for (int l = 0; l < LANES; l++) {
                const double x = rows[(i * width + j) * LANES + l], size = x < 0 ? -x : x;
                most[l] = size > most[l] ? size : most[l];
            }
    for (word k = 0; k < n; k++) {
        double *pivot = rows + (k * width + k) * LANES, best[LANES];
        uint64_t which[LANES];
        for (int l = 0; l < LANES; l++) {
            best[l] = pivot[l] < 0 ? -pivot[l] : pivot[l];
            which[l] = (uint64_t)k;
        }
        for (word i = k + 1; i < n; i++) {
            const double *x = rows + (i * width + k) * LANES;
            for (int l = 0; l < LANES; l++) {
                const double size = x[l] < 0 ? -x[l] : x[l];
                which[l] = size > best[l] ? (uint64_t)i : which[l];
                best[l] = size > best[l] ? size : best[l];
            }
        }
        for (int l = 0; l < LANES; l++)
            doubtful[l] |= !(best[l] > tiny * most[l]);
        for (word i = k + 1; i < n; i++) /* exchange the two rows */
            for (word j = k; j < width; j++) {
                double *x = rows + (k * width + j) * LANES, *y = rows + (i * width + j) * LANES;
                APART_OR_SAME
                for (int l = 0; l < LANES; l++) {
                    const double upper = x[l], lower = y[l];
                    x[l] = which[l] == (uint64_t)i ? lower : upper;
                    y[l] = which[l] == (uint64_t)i ? upper : lower;
                }
            }
        for (word i = k + 1; i < n; i++) {
            const double *x = rows + (i * width + k) * LANES;
            double factor[LANES];
            for (int l = 0; l < LANES; l++)
                factor[l] = x[l] / pivot[l];
            for (word j = k + 1; j < width; j++) {
                const double *from = rows + (k * width + j) * LANES;
                double *to = rows + (i * width + j) * LANES;
                APART_OR_SAME
                for (int l = 0; l < LANES; l++)
                    to[l] -= factor[l] * from[l];
            }
        }
    }
    for (int l = 0; l < LANES; l++)
        any |= doubtful[l];
    return any != 0;
}

/* Solve the triangular systems that are left, in the place of the right sides. */
FOR_EACH_PROCESSOR static void substitute(double *rows, word n, word m)
{
    const word width = n + m;
    for (word i = n - 1; i >= 0; i--) {
        const double *diagonal = rows + (i * width + i) * LANES;
        for (word c = n; c < width; c++) {
            double *to = rows + (i * width + c) * LANES, sum[LANES];
            for (int l = 0; l < LANES; l++)
                sum[l] = to[l];
            for (word j = i + 1; j < n; j++) {
                const double *x = rows + (i * width + j) * LANES, *known = rows + (j * width + c) * LANES;
                for (int l = 0; l < LANES; l++)
                    sum[l] -= x[l] * known[l];
            }
            for (int l = 0; l < LANES; l++)
                to[l] = sum[l] / diagonal[l];
        }
    }
}
