/* Batch normalisation and pooling of arrays with the channels last, for one type: kernels_of_type.h includes this.
 *
 * The channels of a pixel follow one another, and LANES of them are computed side by side. The last LANES begin where
 * they end with the last channel: what they share with those before is computed twice. Fewer channels than LANES are
 * computed between zeros on the stack. */

/* ---------------------------------------------------------------- normalisation */

/* A part of an array: up to ROWS rows of up to TOGETHER columns, each row `move` numbers after the one before. */

INLINE word OF_TYPE(column_of)(word k, word width) { return k + LANES <= width ? k : width - LANES; }

/* How many sums there are, of whole LANES. */
INLINE word OF_TYPE(lanes_of)(word width) { return (width + LANES - 1) / LANES * LANES; }

/* Copy fewer than LANES columns, and zeros after them, to where the rows follow one another; and back. */
INLINE void OF_TYPE(widen_columns)(const REAL *x, word rows, word columns, REAL *RESTRICT made)
{
    for (word row = 0; row < rows; row++)
        for (int l = 0; l < LANES; l++)
            made[row * LANES + l] = l < columns ? x[row * columns + l] : 0;
}

INLINE void OF_TYPE(narrow_columns)(const REAL *RESTRICT x, word rows, word columns, REAL *made)
{
    for (word row = 0; row < rows; row++)
        for (word k = 0; k < columns; k++)
            made[row * columns + k] = x[row * LANES + k];
}

/* The sums of columns: of four rows at a time, added to the others. */
INLINE void OF_TYPE(sum_columns)(const REAL *x, word rows, word move, word width, REAL *RESTRICT sums)
{
    memset(sums, 0, OF_TYPE(lanes_of)(width) * sizeof(REAL));
    for (; rows >= 4; rows -= 4, x += 4 * move)
        for (word k = 0; k < width; k += LANES) {
            const REAL *a = x + OF_TYPE(column_of)(k, width), *b = a + move, *c = b + move, *d = c + move;
            for (int l = 0; l < LANES; l++)
                sums[k + l] += (a[l] + b[l]) + (c[l] + d[l]);
        }
    for (; rows; rows--, x += move)
        for (word k = 0; k < width; k += LANES) {
            const REAL *a = x + OF_TYPE(column_of)(k, width);
            for (int l = 0; l < LANES; l++)
                sums[k + l] += a[l];
        }
}

/* The sums of the squares of what differs from a mean, of two rows at a time. */
INLINE void OF_TYPE(sum_squares)(const REAL *x, word rows, word move, word width, const REAL *RESTRICT mean,
                                 REAL *RESTRICT sums)
{
    memset(sums, 0, OF_TYPE(lanes_of)(width) * sizeof(REAL));
    for (; rows >= 2; rows -= 2, x += 2 * move)
        for (word k = 0; k < width; k += LANES) {
            const REAL *a = x + OF_TYPE(column_of)(k, width), *b = a + move;
            for (int l = 0; l < LANES; l++) {
                const REAL one = a[l] - mean[k + l], other = b[l] - mean[k + l];
                sums[k + l] += one * one + other * other;
            }
        }
    for (word k = 0; rows && k < width; k += LANES) {
        const REAL *a = x + OF_TYPE(column_of)(k, width);
        for (int l = 0; l < LANES; l++)
            sums[k + l] += (a[l] - mean[k + l]) * (a[l] - mean[k + l]);
    }
}

/* Join the means of columns of n rows, and the sums of the squares of what differs from them, to those of the `start`
 * rows before, as by T. F. Chan and others, Updating Formulae (1979). */
INLINE void OF_TYPE(join_moments)(const REAL *x, word start, word n, word move, word width, double *mean,
                                  double *squares)
{
    const double share = (double)n / (double)(start + n), weight = (double)start * share;
    ALIGNED REAL sums[TOGETHER], by[TOGETHER];
    OF_TYPE(sum_columns)(x, n, move, width, by);
    for (word k = 0; k < OF_TYPE(lanes_of)(width); k++)
        by[k] /= (REAL)n;
    OF_TYPE(sum_squares)(x, n, move, width, by, sums);
    for (word k = 0; k < OF_TYPE(lanes_of)(width); k++) {
        const double step = (double)by[k] - mean[k];
        mean[k] += step * share;
        squares[k] += (double)sums[k] + step * step * weight;
    }
}

/* x, less a mean, times 1/std and a weight, plus a bias. */
INLINE void OF_TYPE(scale_columns)(const REAL *x, word rows, word move, word width, REAL (*of)[TOGETHER], REAL *made)
{
    for (; rows; rows--, x += move, made += move)
        for (word k = 0; k < width; k += LANES) {
            const word at = OF_TYPE(column_of)(k, width);
            APART_OR_SAME
            for (int l = 0; l < LANES; l++)
                made[at + l] = OF_TYPE(normal)(x[at + l], of[0][k + l], of[1][k + l]) * of[2][k + l] + of[3][k + l];
        }
}

/* How many columns, from c, to compute together, and where they begin: at least LANES, where there are as many. */
INLINE word OF_TYPE(columns_together)(word columns, word *c)
{
    if (columns >= LANES && columns - *c < LANES)
        *c = columns - LANES;
    return columns - *c < TOGETHER ? columns - *c : TOGETHER;
}

/* Arrays: x, weight, bias, result, mean, 1/std, variance. Lengths: rows, columns. Numbers: eps, whether there is a
 * weight, and a bias. Statistics are those of a column. */
KERNEL(norm_columns)
{
    const word rows = dims[0], columns = dims[1], is_narrow = columns < LANES, move = is_narrow ? LANES : columns;
    const double *numbers = (const double *)context;
    ALIGNED REAL wide[ROWS * LANES], of[4][TOGETHER];
    UNUSED;
    for (word c = 0; c < columns; c += TOGETHER) {
        const word some = OF_TYPE(columns_together)(columns, &c), width = is_narrow ? LANES : some;
        double mean[TOGETHER] = {0}, squares[TOGETHER] = {0};
        for (word start = 0; start < rows; start += ROWS) {
            const word n = rows - start < ROWS ? rows - start : ROWS;
            const REAL *x = (const REAL *)data[0] + start * columns + c;
            if (is_narrow)
                OF_TYPE(widen_columns)(x, n, columns, wide);
            OF_TYPE(join_moments)(is_narrow ? wide : x, start, n, move, width, mean, squares);
        }
        for (word k = 0; k < OF_TYPE(lanes_of)(width); k++) {
            const word at = OF_TYPE(column_of)(k / LANES * LANES, width) + k % LANES;
            const double var = squares[k] / (double)rows;
            of[0][k] = (REAL)mean[k];
            of[1][k] = (REAL)(1 / sqrt(var + numbers[0]));
            of[2][k] = numbers[1] != 0 && at < some ? ((const REAL *)data[1])[c + at] : 1;
            of[3][k] = numbers[2] != 0 && at < some ? ((const REAL *)data[2])[c + at] : 0;
            if (at < some) {
                ((REAL *)data[4])[c + at] = of[0][k];
                ((REAL *)data[5])[c + at] = of[1][k];
                ((REAL *)data[6])[c + at] = (REAL)var;
            }
        }
        for (word start = 0; start < rows; start += ROWS) {
            const word n = rows - start < ROWS ? rows - start : ROWS;
            const REAL *x = (const REAL *)data[0] + start * columns + c;
            REAL *made = (REAL *)data[3] + start * columns + c;
            if (is_narrow)
                OF_TYPE(widen_columns)(x, n, columns, wide);
            OF_TYPE(scale_columns)(is_narrow ? wide : x, n, move, width, of, is_narrow ? wide : made);
            if (is_narrow)
                OF_TYPE(narrow_columns)(wide, n, columns, made);
        }
    }
    return 0;
}

/* Add the sums of g and of g a over columns, of two rows at a time, to `level` and `slope`. */
INLINE void OF_TYPE(sum_slopes)(const REAL *g, const REAL *x, word rows, word move, word width, REAL (*of)[TOGETHER],
                                double *level, double *slope)
{
    ALIGNED REAL levels[TOGETHER], slopes[TOGETHER];
    memset(levels, 0, OF_TYPE(lanes_of)(width) * sizeof(REAL));
    memset(slopes, 0, OF_TYPE(lanes_of)(width) * sizeof(REAL));
    for (; rows >= 2; rows -= 2, g += 2 * move, x += 2 * move)
        for (word k = 0; k < width; k += LANES) {
            const word one = OF_TYPE(column_of)(k, width), other = one + move;
            for (int l = 0; l < LANES; l++) {
                const REAL mean = of[0][k + l], rstd = of[1][k + l];
                levels[k + l] += g[one + l] + g[other + l];
                slopes[k + l] += g[one + l] * OF_TYPE(normal)(x[one + l], mean, rstd) +
                                 g[other + l] * OF_TYPE(normal)(x[other + l], mean, rstd);
            }
        }
    for (word k = 0; rows && k < width; k += LANES) {
        const word at = OF_TYPE(column_of)(k, width);
        for (int l = 0; l < LANES; l++) {
            levels[k + l] += g[at + l];
            slopes[k + l] += g[at + l] * OF_TYPE(normal)(x[at + l], of[0][k + l], of[1][k + l]);
        }
    }
    for (word k = 0; k < OF_TYPE(lanes_of)(width); k++) {
        level[k] += (double)levels[k];
        slope[k] += (double)slopes[k];
    }
}

/* The cotangent of x. */
INLINE void OF_TYPE(slope_columns)(const REAL *g, const REAL *x, word rows, word move, word width,
                                   REAL (*of)[TOGETHER], REAL *made)
{
    for (; rows; rows--, g += move, x += move, made += move)
        for (word k = 0; k < width; k += LANES) {
            const word at = OF_TYPE(column_of)(k, width);
            APART_OR_SAME
            for (int l = 0; l < LANES; l++)
                made[at + l] = (g[at + l] - OF_TYPE(normal)(x[at + l], of[0][k + l], of[1][k + l]) * of[2][k + l] -
                                of[3][k + l]) * of[4][k + l];
        }
}

/* Arrays: cotangent, weight, x, mean, 1/std, the cotangents of x, weight and bias. Lengths: as above. Numbers: whether
 * there is a weight. */
KERNEL(norm_columns_vjp)
{
    const word rows = dims[0], columns = dims[1], is_narrow = columns < LANES, move = is_narrow ? LANES : columns;
    const int weighs = ((const double *)context)[0] != 0;
    ALIGNED REAL wide_g[ROWS * LANES], wide_x[ROWS * LANES], of[5][TOGETHER];
    UNUSED;
    for (word c = 0; c < columns; c += TOGETHER) {
        const word some = OF_TYPE(columns_together)(columns, &c), width = is_narrow ? LANES : some;
        double level[TOGETHER] = {0}, slope[TOGETHER] = {0};
        for (word k = 0; k < OF_TYPE(lanes_of)(width); k++) {
            const word at = OF_TYPE(column_of)(k / LANES * LANES, width) + k % LANES;
            of[0][k] = at < some ? ((const REAL *)data[3])[c + at] : 0;
            of[1][k] = at < some ? ((const REAL *)data[4])[c + at] : 0;
        }
        for (int is_second = 0; is_second < 2; is_second++) {
            for (word start = 0; start < rows; start += ROWS) {
                const word n = rows - start < ROWS ? rows - start : ROWS, at = start * columns + c;
                const REAL *g = (const REAL *)data[0] + at, *x = (const REAL *)data[2] + at;
                if (is_narrow) {
                    OF_TYPE(widen_columns)(g, n, columns, wide_g);
                    OF_TYPE(widen_columns)(x, n, columns, wide_x);
                    g = wide_g;
                    x = wide_x;
                }
                if (!is_second)
                    OF_TYPE(sum_slopes)(g, x, n, move, width, of, level, slope);
                else
                    OF_TYPE(slope_columns)(g, x, n, move, width, of, is_narrow ? wide_x : (REAL *)data[5] + at);
                if (is_second && is_narrow)
                    OF_TYPE(narrow_columns)(wide_x, n, columns, (REAL *)data[5] + at);
            }
            for (word k = 0; k < OF_TYPE(lanes_of)(width); k++) {
                const word at = OF_TYPE(column_of)(k / LANES * LANES, width) + k % LANES;
                of[2][k] = (REAL)(slope[k] / (double)rows);
                of[3][k] = (REAL)(level[k] / (double)rows);
                of[4][k] = of[1][k] * (weighs && at < some ? ((const REAL *)data[1])[c + at] : 1);
                if (at < some) {
                    ((REAL *)data[6])[c + at] = (REAL)slope[k];
                    ((REAL *)data[7])[c + at] = (REAL)level[k];
                }
            }
        }
    }
    return 0;
}

/* ---------------------------------------------------------------- pooling */

/* The taps of a window that are not in the padding: from the first to before the last. */
INLINE void OF_TYPE(taps_inside)(word start, word gap, word size, word taps, word *first, word *last)
{
    *first = start < 0 ? (-start + gap - 1) / gap : 0;
    *last = (size - start + gap - 1) / gap < taps ? (size - start + gap - 1) / gap : taps;
}

/* Arrays: x, the largest number of each window, its tap (uint8). Lengths: images, rows and columns of an image, of
 * windows, of taps, channels. Numbers: stride, padding and dilation, each of rows and of columns. Of equal numbers the
 * first is chosen, of NaN the last. */
KERNEL(max_pool2d_columns)
{
    const double *numbers = (const double *)context;
    const word height = dims[1], width = dims[2], rows = dims[3], columns = dims[4], right = dims[6], channels = dims[7];
    const word gap_down = (word)numbers[4], gap = (word)numbers[5];
    UNUSED;
    for (word line = 0; line < dims[0] * rows; line++) {
        const word top = line % rows * (word)numbers[0] - (word)numbers[2];
        const REAL *image = (const REAL *)data[0] + line / rows * height * width * channels;
        word first, last;
        OF_TYPE(taps_inside)(top, gap_down, height, dims[5], &first, &last);
        for (word column = 0; column < columns; column++) {
            const word left = column * (word)numbers[1] - (word)numbers[3], to = (line * columns + column) * channels;
            REAL *made = (REAL *)data[1] + to;
            uint8_t *which = (uint8_t *)data[2] + to;
            word begin, end;
            OF_TYPE(taps_inside)(left, gap, width, right, &begin, &end);
            for (word k = 0; k < channels; k += LANES) {
                const word c = channels < LANES ? 0 : OF_TYPE(column_of)(k, channels);
                REAL most[LANES], narrow[LANES] = {0};
                INTEGER taps[LANES];
                for (int l = 0; l < LANES; l++) {
                    most[l] = -(REAL)INFINITY;
                    taps[l] = (INTEGER)(first * right + begin);
                }
                for (word i = first; i < last; i++)
                    for (word j = begin; j < end; j++) {
                        const REAL *x = image + ((top + i * gap_down) * width + left + j * gap) * channels + c;
                        const INTEGER tap = (INTEGER)(i * right + j);
                        if (channels < LANES)
                            x = memcpy(narrow, x, channels * sizeof(REAL));
                        for (int l = 0; l < LANES; l++) {
                            const int is_larger = (x[l] > most[l]) | (x[l] != x[l]);
                            most[l] = is_larger ? x[l] : most[l];
                            taps[l] = is_larger ? tap : taps[l];
                        }
                    }
                if (channels >= LANES)
                    for (int l = 0; l < LANES; l++) {
                        made[c + l] = most[l];
                        which[c + l] = (uint8_t)taps[l];
                    }
                else
                    for (word l = 0; l < channels; l++) {
                        made[l] = most[l];
                        which[l] = (uint8_t)taps[l];
                    }
            }
        }
    }
    return 0;
}

/* Arrays: cotangents of the windows, their taps (uint8), the cotangent of x. Lengths and numbers: as above. */
KERNEL(max_pool2d_columns_vjp)
{
    const double *numbers = (const double *)context;
    const word height = dims[1], width = dims[2], rows = dims[3], columns = dims[4], right = dims[6], channels = dims[7];
    const word gap_down = (word)numbers[4], gap = (word)numbers[5];
    UNUSED;
    for (word line = 0; line < dims[0] * rows; line++) {
        const word top = line % rows * (word)numbers[0] - (word)numbers[2];
        REAL *image = (REAL *)data[2] + line / rows * height * width * channels;
        word first, last;
        if (line % rows == 0)
            memset(image, 0, height * width * channels * sizeof(REAL));
        OF_TYPE(taps_inside)(top, gap_down, height, dims[5], &first, &last);
        for (word column = 0; column < columns; column++) {
            const word left = column * (word)numbers[1] - (word)numbers[3], from = (line * columns + column) * channels;
            const REAL *RESTRICT g = (const REAL *)data[0] + from;
            const uint8_t *RESTRICT which = (const uint8_t *)data[1] + from;
            word begin, end;
            OF_TYPE(taps_inside)(left, gap, width, right, &begin, &end);
            word c = 0;
            for (; c + LANES <= channels; c += LANES) {
                REAL slope[LANES];
                INTEGER taps[LANES]; /* as wide as the numbers that they choose from */
                for (int l = 0; l < LANES; l++) {
                    slope[l] = g[c + l];
                    taps[l] = which[c + l];
                }
                for (word i = first; i < last; i++)
                    for (word j = begin; j < end; j++) {
                        REAL *made = image + ((top + i * gap_down) * width + left + j * gap) * channels + c;
                        const INTEGER tap = (INTEGER)(i * right + j);
                        for (int l = 0; l < LANES; l++)
                            made[l] += taps[l] == tap ? slope[l] : 0;
                    }
            }
            for (; c < channels; c++) {
                const word i = which[c] / right, j = which[c] % right;
                if (i < first || i >= last || j < begin || j >= end)
                    return 1;
                image[((top + i * gap_down) * width + left + j * gap) * channels + c] += g[c];
            }
        }
    }
    return 0;
}

/* Arrays: x, what each window is divided by, means. Lengths: as above. Numbers: stride and padding, each of rows and of
 * columns. */
KERNEL(avg_pool2d_columns)
{
    const double *numbers = (const double *)context;
    const word height = dims[1], width = dims[2], rows = dims[3], columns = dims[4], channels = dims[7];
    UNUSED;
    for (word line = 0; line < dims[0] * rows; line++) {
        const word top = line % rows * (word)numbers[0] - (word)numbers[2];
        const REAL *image = (const REAL *)data[0] + line / rows * height * width * channels;
        word first, last;
        OF_TYPE(taps_inside)(top, 1, height, dims[5], &first, &last);
        for (word column = 0; column < columns; column++) {
            const word left = column * (word)numbers[1] - (word)numbers[3];
            const REAL divisor = ((const REAL *)data[1])[line % rows * columns + column];
            REAL *made = (REAL *)data[2] + (line * columns + column) * channels;
            word begin, end;
            OF_TYPE(taps_inside)(left, 1, width, dims[6], &begin, &end);
            for (word k = 0; k < channels; k += LANES) {
                const word c = channels < LANES ? 0 : OF_TYPE(column_of)(k, channels);
                REAL total[LANES] = {0}, narrow[LANES] = {0};
                for (word j = begin; j < end; j++) { /* the rows of a window, and then these, as avg_pool2d does */
                    REAL sum[LANES] = {0};
                    for (word i = first; i < last; i++) {
                        const REAL *x = image + ((top + i) * width + left + j) * channels + c;
                        if (channels < LANES)
                            x = memcpy(narrow, x, channels * sizeof(REAL));
                        for (int l = 0; l < LANES; l++)
                            sum[l] += x[l];
                    }
                    for (int l = 0; l < LANES; l++)
                        total[l] += sum[l];
                }
                if (channels >= LANES)
                    for (int l = 0; l < LANES; l++)
                        made[c + l] = total[l] / divisor;
                else
                    for (word l = 0; l < channels; l++)
                        made[l] = total[l] / divisor;
            }
        }
    }
    return 0;
}

/* Arrays: cotangents of the means, divisors, the cotangent of x. Lengths and numbers: as above. */
KERNEL(avg_pool2d_columns_vjp)
{
    const double *numbers = (const double *)context;
    const word height = dims[1], width = dims[2], rows = dims[3], columns = dims[4], channels = dims[7];
    UNUSED;
    for (word line = 0; line < dims[0] * rows; line++) {
        const word top = line % rows * (word)numbers[0] - (word)numbers[2];
        REAL *image = (REAL *)data[2] + line / rows * height * width * channels;
        word first, last;
        if (line % rows == 0)
            memset(image, 0, height * width * channels * sizeof(REAL));
        OF_TYPE(taps_inside)(top, 1, height, dims[5], &first, &last);
        for (word column = 0; column < columns; column++) {
            const word left = column * (word)numbers[1] - (word)numbers[3];
            const REAL divisor = ((const REAL *)data[1])[line % rows * columns + column];
            const REAL *RESTRICT g = (const REAL *)data[0] + (line * columns + column) * channels;
            word begin, end;
            OF_TYPE(taps_inside)(left, 1, width, dims[6], &begin, &end);
            for (word i = first; i < last; i++)
                for (word j = begin; j < end; j++) {
                    REAL *RESTRICT made = image + ((top + i) * width + left + j) * channels;
                    for (word c = 0; c < channels; c++)
                        made[c] += g[c] / divisor;
                }
        }
    }
    return 0;
}
