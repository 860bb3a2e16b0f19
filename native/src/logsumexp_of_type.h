/* log(sum(exp(x))) for one type: kernels_of_type.h includes this. x is (rows, length, columns), summed over the middle.
 *
 * A long row is read once: each strip of it has a largest number of its own, and the sum so far is scaled where a strip
 * has a larger one. Columns are taken some at a time, so that they are read from the cache the second time. */


/* What log(sum(exp(x))) is where the largest number is not finite, or may be NaN: NaN if there is one, else that. */
static REAL OF_TYPE(irregular)(const REAL *x, word n, word step)
{
    REAL most = -(REAL)INFINITY;
    for (word k = 0; k < n; k++)
        if (!(x[k * step] <= most)) {
            most = x[k * step];
            if (most != most)
                break;
        }
    return most;
}

static REAL OF_TYPE(logsumexp_of_row)(const REAL *x, word n)
{
    REAL top = -(REAL)INFINITY;
    double total = 0;
    for (word start = 0; start < n; start += STRIP) {
        const word count = n - start < STRIP ? n - start : STRIP;
        const REAL here = OF_TYPE(largest)(x + start, count);
        if (here - here != 0) {
            if (OF_TYPE(irregular)(x + start, count, 1) == -(REAL)INFINITY)
                continue;
            return OF_TYPE(irregular)(x, n, 1);
        }
        const double more = OF_TYPE(sum_of_exp)(x + start, here, count);
        if (here > top) {
            total = total * OF_TYPE(exp_below)(top - here) + more;
            top = here;
        } else
            total += more * OF_TYPE(exp_below)(here - top);
    }
    return (REAL)(log(total) + top);
}

/* Columns of a matrix whose rows are `step` numbers long. */
FOR_EACH_PROCESSOR static void OF_TYPE(logsumexp_of_columns)(const REAL *x, REAL *out, word length, word step, word count)
{
    ORDERED most[COLUMNS];
    REAL tops[COLUMNS], sums[COLUMNS];
    double totals[COLUMNS] = {0};
    for (word j = 0; j < count; j++)
        most[j] = OF_TYPE(in_order)((ORDERED)OF_TYPE(bits_of)(x[j]));
    for (word k = 1; k < length; k++)
        for (word j = 0; j < count; j++) {
            const ORDERED here = OF_TYPE(in_order)((ORDERED)OF_TYPE(bits_of)(x[k * step + j]));
            most[j] = here > most[j] ? here : most[j];
        }
    for (word j = 0; j < count; j++)
        tops[j] = OF_TYPE(number_of_bits)((INTEGER)OF_TYPE(in_order)(most[j]));
    for (word start = 0; start < length; start += ROWS) {
        const word end = length - start < ROWS ? length : start + ROWS;
        for (word j = 0; j < count; j++)
            sums[j] = 0;
        for (word k = start; k < end; k++)
            for (word j = 0; j < count; j++)
                sums[j] += OF_TYPE(exp_below)(x[k * step + j] - tops[j]);
        for (word j = 0; j < count; j++)
            totals[j] += sums[j];
    }
    for (word j = 0; j < count; j++)
        out[j] = tops[j] - tops[j] != 0 ? OF_TYPE(irregular)(x + j, length, step) : (REAL)(log(totals[j]) + tops[j]);
}

/* Arrays: x, log(sum(exp(x))). Lengths: rows, length, columns. */
KERNEL(logsumexp)
{
    const word length = dims[1], columns = dims[2];
    UNUSED;
    for (word row = 0; row < dims[0]; row++) {
        const REAL *x = (const REAL *)data[0] + row * length * columns;
        REAL *out = (REAL *)data[1] + row * columns;
        if (columns == 1)
            out[0] = OF_TYPE(logsumexp_of_row)(x, length);
        else
            for (word first = 0; first < columns; first += COLUMNS) {
                const word left = columns - first;
                OF_TYPE(logsumexp_of_columns)(x + first, out + first, length, columns,
                                              left < COLUMNS ? left : COLUMNS);
            }
    }
    return 0;
}

/* What exp(x - out) is multiplied by: NaN where out is inf or NaN; where it is -inf, all x are. */
INLINE REAL OF_TYPE(weight_of)(REAL g, REAL out)
{
    return out - out == 0 || out == -(REAL)INFINITY ? g : (REAL)NAN;
}

/* What takes the rounding error of out, and so of the sum of exp(x - out), out of the cotangent of x: 1 where that is no
 * larger than those of the exponentials, as it is for small out. It saves a second time over memory. */
INLINE REAL OF_TYPE(correction_of)(REAL out, double total)
{
    return out - out != 0 || fabs(total - 1) <= 4 * ROUNDING ? 1 : (REAL)(1 / total);
}

FOR_EACH_PROCESSOR static void OF_TYPE(logsumexp_vjp_of_row)(REAL g, const REAL *x, REAL out, REAL *made, word n)
{
    const REAL level = out - out == 0 ? out : 0, weight = OF_TYPE(weight_of)(g, out);
    REAL e[PIECE];
    double total = 0;
    for (word start = 0; start < n; start += PIECE) {
        const word count = n - start < PIECE ? n - start : PIECE;
        for (word k = 0; k < count; k++)
            e[k] = OF_TYPE(exp_below)(x[start + k] - level);
        total += OF_TYPE(sum)(e, count);
        for (word k = 0; k < count; k++)
            made[start + k] = e[k] * weight;
    }
    const REAL correction = OF_TYPE(correction_of)(out, total);
    for (word k = 0; correction != 1 && k < n; k++)
        made[k] *= correction;
}

FOR_EACH_PROCESSOR static void OF_TYPE(logsumexp_vjp_of_columns)(const REAL *g, const REAL *x, const REAL *out,
                                                                 REAL *made, word length, word step, word count)
{
    REAL levels[COLUMNS], weights[COLUMNS], corrections[COLUMNS];
    double totals[COLUMNS] = {0};
    int is_right = 1;
    for (word j = 0; j < count; j++) {
        levels[j] = out[j] - out[j] == 0 ? out[j] : 0;
        weights[j] = OF_TYPE(weight_of)(g[j], out[j]);
    }
    for (word k = 0; k < length; k++)
        for (word j = 0; j < count; j++) {
            const REAL e = OF_TYPE(exp_below)(x[k * step + j] - levels[j]);
            made[k * step + j] = e * weights[j];
            totals[j] += e;
        }
    for (word j = 0; j < count; j++) {
        corrections[j] = OF_TYPE(correction_of)(out[j], totals[j]);
        is_right &= corrections[j] == 1;
    }
    for (word k = 0; !is_right && k < length; k++)
        for (word j = 0; j < count; j++)
            made[k * step + j] *= corrections[j];
}

/* Arrays: cotangent, x, log(sum(exp(x))), the cotangent of x: g exp(x - out), divided by the sum of exp(x - out) where
 * that is not 1. Lengths: rows, length, columns. */
KERNEL(logsumexp_vjp)
{
    const word length = dims[1], columns = dims[2];
    UNUSED;
    for (word row = 0; row < dims[0]; row++) {
        const word at = row * length * columns;
        const REAL *g = (const REAL *)data[0] + row * columns, *x = (const REAL *)data[1] + at;
        const REAL *out = (const REAL *)data[2] + row * columns;
        REAL *made = (REAL *)data[3] + at;
        if (columns == 1)
            OF_TYPE(logsumexp_vjp_of_row)(g[0], x, out[0], made, length);
        else
            for (word first = 0; first < columns; first += COLUMNS) {
                const word left = columns - first;
                OF_TYPE(logsumexp_vjp_of_columns)(g + first, x + first, out + first, made + first, length, columns,
                                                  left < COLUMNS ? left : COLUMNS);
            }
    }
    return 0;
}
