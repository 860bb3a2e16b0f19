/* The kernels for one type: kernels.c includes this for float and for double, with the constants of each. */

/* ---------------------------------------------------------------- numbers */

INLINE REAL OF_TYPE(number_of_bits)(INTEGER bits)
{
    REAL found;
    memcpy(&found, &bits, sizeof(found));
    return found;
}

INLINE INTEGER OF_TYPE(bits_of)(REAL x)
{
    INTEGER found;
    memcpy(&found, &x, sizeof(found));
    return found;
}

/* exp(x + rest), for x from LOWEST to HIGHEST, or NaN, and a rest below 0.05. The power of 2 is multiplied in two parts,
 * so that the smallest and the largest results are right. */
INLINE REAL OF_TYPE(exp_within)(REAL x, REAL rest)
{
    const REAL rounded = x * (REAL)1.44269504088896340736 + ROUND, n = rounded - ROUND;
    const REAL r = x - n * LOG_2_HIGH - n * LOG_2_LOW + rest;
    const INTEGER both = OF_TYPE(bits_of)(rounded) - OF_TYPE(bits_of)(ROUND) + 2 * BIAS, one = both >> 1;
    const REAL p = r * r * EXP_Q(r) + r + 1;
    return p * OF_TYPE(number_of_bits)(one << MANTISSA) * OF_TYPE(number_of_bits)((both - one) << MANTISSA);
}

/* exp(x) for any x. What underflows is no product of small numbers, which would take a hundred times as long. */
INLINE REAL OF_TYPE(exp_of)(REAL x)
{
    const REAL high = x > HIGHEST ? HIGHEST : x, near = high < LOWEST ? 0 : high, found = OF_TYPE(exp_within)(near, 0);
    return high < LOWEST ? 0 : found;
}

/* The sum of LANES numbers, which it overwrites. */
INLINE double OF_TYPE(added)(REAL *lanes)
{
    for (int l = 0; l < 8; l++)
        lanes[l] += lanes[l + 8];
    for (int l = 0; l < 4; l++)
        lanes[l] += lanes[l + 4];
    return (lanes[0] + lanes[2]) + (lanes[1] + lanes[3]);
}

/* The sums of x, and of products of x and y, over n numbers: twice LANES side by side, so that an addition need not
 * wait for the one before. */
FOR_EACH_PROCESSOR static double OF_TYPE(sum)(const REAL *x, word n)
{
    double total = 0;
    for (word start = 0; start < n; start += STRIP) {
        const word end = n - start < STRIP ? n : start + STRIP;
        REAL lanes[LANES] = {0}, others[LANES] = {0};
        word k = start;
        for (; k + 2 * LANES <= end; k += 2 * LANES)
            for (int l = 0; l < LANES; l++) {
                lanes[l] += x[k + l];
                others[l] += x[k + LANES + l];
            }
        for (; k + LANES <= end; k += LANES)
            for (int l = 0; l < LANES; l++)
                lanes[l] += x[k + l];
        for (int l = 0; k < end; k++, l++)
            others[l] += x[k];
        for (int l = 0; l < LANES; l++)
            lanes[l] += others[l];
        total += OF_TYPE(added)(lanes);
    }
    return total;
}

FOR_EACH_PROCESSOR static double OF_TYPE(dot)(const REAL *x, const REAL *y, word n)
{
    double total = 0;
    for (word start = 0; start < n; start += STRIP) {
        const word end = n - start < STRIP ? n : start + STRIP;
        REAL lanes[LANES] = {0}, others[LANES] = {0};
        word k = start;
        for (; k + 2 * LANES <= end; k += 2 * LANES)
            for (int l = 0; l < LANES; l++) {
                lanes[l] += x[k + l] * y[k + l];
                others[l] += x[k + LANES + l] * y[k + LANES + l];
            }
        for (; k + LANES <= end; k += LANES)
            for (int l = 0; l < LANES; l++)
                lanes[l] += x[k + l] * y[k + l];
        for (int l = 0; k < end; k++, l++)
            others[l] += x[k] * y[k];
        for (int l = 0; l < LANES; l++)
            lanes[l] += others[l];
        total += OF_TYPE(added)(lanes);
    }
    return total;
}

/* exp(x) for x that is NaN or not above 0, but for roundings; 0 where that is below the smallest normal number. */
INLINE REAL OF_TYPE(exp_below)(REAL x)
{
    const REAL near = x < NORMAL ? 0 : x;
    const REAL rounded = near * (REAL)1.44269504088896340736 + ROUND, n = rounded - ROUND;
    const REAL r = near - n * LOG_2_HIGH - n * LOG_2_LOW;
    const INTEGER exponent = OF_TYPE(bits_of)(rounded) - OF_TYPE(bits_of)(ROUND) + BIAS;
    const REAL found = (r * r * EXP_Q(r) + r + 1) * OF_TYPE(number_of_bits)(exponent << MANTISSA);
    return x < NORMAL ? 0 : found;
}

/* A number as an integer of the same order, which the compiler may compare in any order, and back: it is its own
 * inverse. */
INLINE ORDERED OF_TYPE(in_order)(ORDERED bits)
{
    return bits < 0 ? bits ^ (ORDERED)~SIGN : bits;
}

/* The largest of n numbers; where one is NaN, this may be NaN or not. */
FOR_EACH_PROCESSOR static REAL OF_TYPE(largest)(const REAL *x, word n)
{
    ORDERED most = OF_TYPE(in_order)((ORDERED)OF_TYPE(bits_of)(x[0]));
    for (word k = 0; k < n; k++) { /* from the first on, so that a row of 16 is one vector */
        const ORDERED here = OF_TYPE(in_order)((ORDERED)OF_TYPE(bits_of)(x[k]));
        most = here > most ? here : most;
    }
    return OF_TYPE(number_of_bits)((INTEGER)OF_TYPE(in_order)(most));
}

/* ---------------------------------------------------------------- gelu */

/* a = min(|x|, FAR_TAIL), exp(-a^2 / 2), and the tail Phi(-a). The square of the upper half of a is exact; rounding
 * that of a itself would cause an error of up to a^2 / 2 roundings. */
INLINE REAL OF_TYPE(tail_of)(REAL x, REAL *a, REAL *bell)
{
    REAL size = OF_TYPE(number_of_bits)(OF_TYPE(bits_of)(x) & ~SIGN);
    size = size > FAR_TAIL ? FAR_TAIL : size;
    const REAL upper = OF_TYPE(number_of_bits)(OF_TYPE(bits_of)(size) & HALF), half = (REAL)0.5;
    *a = size;
    *bell = OF_TYPE(exp_within)(-half * upper * upper, -half * (size - upper) * (size + upper));
    return *bell * (TAIL_ABOVE(size) / TAIL_BELOW(size));
}

/* Arrays: x, x Phi(x). */
KERNEL(gelu)
{
    const REAL *x = (const REAL *)data[0];
    REAL *out = (REAL *)data[1];
    UNUSED;
    APART_OR_SAME
    for (word k = 0; k < dims[0]; k++) {
        REAL a, bell;
        const REAL tail = OF_TYPE(tail_of)(x[k], &a, &bell);
        out[k] = (x[k] < 0 ? 0 : x[k]) - a * tail;
    }
    return 0;
}

/* Phi(x) + x phi(x): for positive x 1 minus that of -x. */
INLINE REAL OF_TYPE(gelu_slope_of)(REAL x)
{
    REAL a, bell;
    const REAL tail = OF_TYPE(tail_of)(x, &a, &bell);
    const REAL slope = tail - a * (bell * (REAL)0.398942280401432678);
    return x > 0 ? 1 - slope : slope;
}

/* Arrays: x, slope. */
KERNEL(gelu_slope)
{
    const REAL *x = (const REAL *)data[0];
    REAL *out = (REAL *)data[1];
    UNUSED;
    APART_OR_SAME
    for (word k = 0; k < dims[0]; k++)
        out[k] = OF_TYPE(gelu_slope_of)(x[k]);
    return 0;
}

/* Arrays: cotangent, x, the cotangent of x, which may be the first. */
KERNEL(gelu_vjp)
{
    const REAL *g = (const REAL *)data[0], *x = (const REAL *)data[1];
    REAL *out = (REAL *)data[2];
    UNUSED;
    APART_OR_SAME
    for (word k = 0; k < dims[0]; k++)
        out[k] = g[k] * OF_TYPE(gelu_slope_of)(x[k]);
    return 0;
}

/* The approximation x s(2 u), with the logistic function s and 2 u = x (linear + cubic x^2). */
#define GELU_LINEAR (REAL)1.59576912160573071176
#define GELU_CUBIC (REAL)0.0713548162726002487763
#define GELU_FAR (REAL)50

KERNEL(gelu_tanh)
{
    const REAL *x = (const REAL *)data[0];
    REAL *out = (REAL *)data[1];
    UNUSED;
    APART_OR_SAME
    for (word k = 0; k < dims[0]; k++) {
        const REAL near = x[k] < -GELU_FAR ? -GELU_FAR : x[k];
        out[k] = near / (1 + OF_TYPE(exp_of)(-near * (GELU_LINEAR + GELU_CUBIC * near * near)));
    }
    return 0;
}

KERNEL(gelu_tanh_vjp)
{
    const REAL *g = (const REAL *)data[0], *x = (const REAL *)data[1];
    REAL *out = (REAL *)data[2];
    UNUSED;
    APART_OR_SAME
    for (word k = 0; k < dims[0]; k++) {
        REAL near = x[k] < -GELU_FAR ? -GELU_FAR : x[k];
        near = near > GELU_FAR ? GELU_FAR : near;
        const REAL square = near * near;
        const REAL e = OF_TYPE(exp_of)(-near * (GELU_LINEAR + GELU_CUBIC * square)), s = 1 / (1 + e);
        /* 1 - s is e s, but where e is infinite and s 0 */
        const REAL other = e > 1 ? 1 - s : e * s;
        out[k] = g[k] * (s + s * other * near * (GELU_LINEAR + 3 * GELU_CUBIC * square));
    }
    return 0;
}
#undef GELU_LINEAR
#undef GELU_CUBIC
#undef GELU_FAR

/* ---------------------------------------------------------------- softmax */

/* The sum of exp(x - top). */
FOR_EACH_PROCESSOR static double OF_TYPE(sum_of_exp)(const REAL *x, REAL top, word n)
{
    REAL made[PIECE];
    double total = 0;
    for (word start = 0; start < n; start += PIECE) {
        const word count = n - start < PIECE ? n - start : PIECE;
        for (word k = 0; k < count; k++)
            made[k] = OF_TYPE(exp_below)(x[start + k] - top);
        total += OF_TYPE(sum)(made, count);
    }
    return total;
}

/* Arrays: x, softmax(x). Lengths: rows, columns. Numbers: a factor of x. The two may be one array. */
KERNEL(softmax)
{
    const word n = dims[1];
    const REAL factor = (REAL)((const double *)context)[0];
    UNUSED;
    for (word row = 0; row < dims[0]; row++) {
        const REAL *x = (const REAL *)data[0] + row * n;
        REAL *out = (REAL *)data[1] + row * n;
        if (factor != 1) {
            APART_OR_SAME
            for (word k = 0; k < n; k++)
                out[k] = x[k] * factor;
            x = out;
        }
        const REAL top = OF_TYPE(largest)(x, n);
        APART_OR_SAME
        for (word k = 0; k < n; k++)
            out[k] = OF_TYPE(exp_below)(x[k] - top);
        const REAL share = (REAL)(1 / OF_TYPE(sum)(out, n));
        for (word k = 0; k < n; k++)
            out[k] *= share;
    }
    return 0;
}

#define CERTAIN ((REAL)(1 - 1e-6)) /* from which on a probability is taken for 1 less the others */

/* A row where a probability is nearly 1: as they add up to 1, its g may be subtracted from all, and its result is
 * then a sum of small numbers and not a difference that is rounded to 0. */
static void OF_TYPE(softmax_vjp_at_1)(const REAL *g, const REAL *out, REAL *made, word n, REAL factor)
{
    word at = 0;
    double total = 0;
    while (!(out[at] > CERTAIN))
        at++;
    const REAL shift = g[at];
    for (word k = 0; k < n; k++)
        total += (double)(g[k] - shift) * out[k];
    for (word k = 0; k < n; k++)
        made[k] = out[k] * (REAL)(g[k] - shift - total) * factor;
}

/* Arrays: cotangent, softmax(x), out (g - sum(g out)). Lengths: rows, columns. Numbers: a factor of the last, which may
 * be one of the others. */
KERNEL(softmax_vjp)
{
    const word n = dims[1];
    const REAL factor = (REAL)((const double *)context)[0];
    UNUSED;
    for (word row = 0; row < dims[0]; row++) {
        const REAL *g = (const REAL *)data[0] + row * n, *out = (const REAL *)data[1] + row * n;
        REAL *made = (REAL *)data[2] + row * n;
        const REAL total = (REAL)OF_TYPE(dot)(g, out, n);
        if (OF_TYPE(largest)(out, n) > CERTAIN) {
            OF_TYPE(softmax_vjp_at_1)(g, out, made, n, factor);
            continue;
        }
        APART_OR_SAME
        for (word k = 0; k < n; k++)
            made[k] = out[k] * (g[k] - total) * factor;
    }
    return 0;
}

/* Arrays: x, log(softmax(x)). Lengths: rows, columns. Numbers: whether 0 stands for a largest number not finite. */
KERNEL(log_softmax)
{
    const word n = dims[1];
    UNUSED;
    for (word row = 0; row < dims[0]; row++) {
        const REAL *x = (const REAL *)data[0] + row * n;
        REAL *out = (REAL *)data[1] + row * n;
        REAL top = OF_TYPE(largest)(x, n), total;
        if (((const double *)context)[0] != 0 && top - top != 0) {
            total = top;
            for (word k = 0; k < n; k++)
                total = x[k] != x[k] ? x[k] : total;
            top = 0;
        } else
            total = (REAL)log(OF_TYPE(sum_of_exp)(x, top, n));
        APART_OR_SAME
        for (word k = 0; k < n; k++)
            out[k] = x[k] - top - total;
    }
    return 0;
}

/* Arrays: cotangent, log(softmax(x)), g - exp(out) sum(g). Lengths: rows, columns. */
KERNEL(log_softmax_vjp)
{
    const word n = dims[1];
    UNUSED;
    for (word row = 0; row < dims[0]; row++) {
        const REAL *g = (const REAL *)data[0] + row * n, *out = (const REAL *)data[1] + row * n;
        REAL *made = (REAL *)data[2] + row * n;
        const REAL total = (REAL)OF_TYPE(sum)(g, n), top = OF_TYPE(largest)(out, n);
        word at = n; /* where a probability is nearly 1 */
        double others = 0;
        if (OF_TYPE(exp_below)(top) > CERTAIN) {
            for (at = 0; out[at] != top;)
                at++;
            for (word k = 0; k < n; k++)
                others += k == at ? 0 : OF_TYPE(exp_below)(out[k]);
        }
        const REAL rest = at < n ? g[at] - total + (REAL)others * total : 0;
        APART_OR_SAME
        for (word k = 0; k < n; k++)
            made[k] = g[k] - OF_TYPE(exp_below)(out[k]) * total;
        if (at < n)
            made[at] = rest;
    }
    return 0;
}

/* Arrays: x, labels (int64), losses, largest numbers, log(sum(exp(x - largest))). Lengths: rows, columns. */
KERNEL(cross_entropy)
{
    const word n = dims[1], *labels = (const word *)data[1];
    REAL *losses = (REAL *)data[2], *tops = (REAL *)data[3], *totals = (REAL *)data[4];
    UNUSED;
    for (word row = 0; row < dims[0]; row++) {
        const REAL *x = (const REAL *)data[0] + row * n;
        if (labels[row] < 0 || labels[row] >= n)
            return 1;
        tops[row] = OF_TYPE(largest)(x, n);
        totals[row] = (REAL)log(OF_TYPE(sum_of_exp)(x, tops[row], n));
        losses[row] = totals[row] - (x[labels[row]] - tops[row]);
    }
    return 0;
}

/* What makes a row add up to 0. */
static REAL OF_TYPE(minus_sum_of_others)(const REAL *x, word at, word n)
{
    double total = 0;
    for (word k = 0; k < n; k++)
        total -= k == at ? 0 : x[k];
    return (REAL)total;
}

/* Arrays: cotangents of the losses, x, labels, largest numbers, logarithms, the cotangent of x. Lengths: rows, columns.
 * Numbers: 1, or 0 where there is one cotangent for all rows. */
KERNEL(cross_entropy_vjp)
{
    const word n = dims[1], *labels = (const word *)data[2], step = (word)((const double *)context)[0];
    const REAL *given = (const REAL *)data[0], *tops = (const REAL *)data[3], *totals = (const REAL *)data[4];
    UNUSED;
    for (word row = 0; row < dims[0]; row++) {
        const REAL *x = (const REAL *)data[1] + row * n;
        REAL *made = (REAL *)data[5] + row * n;
        const REAL g = given[row * step], top = tops[row], total = totals[row];
        if (labels[row] < 0 || labels[row] >= n)
            return 1;
        APART_OR_SAME
        for (word k = 0; k < n; k++)
            made[k] = OF_TYPE(exp_below)(x[k] - top - total) * g;
        REAL *of_label = made + labels[row];
        const REAL rest = *of_label - g;
        const REAL most = (REAL)1e-6 * (g < 0 ? -g : g);
        *of_label = rest <= most && -rest <= most ? OF_TYPE(minus_sum_of_others)(made, labels[row], n) : rest;
    }
    return 0;
}

/* ---------------------------------------------------------------- look-ups */

/* Add rows to those of a table, in their order. Arrays: rows, for each the number of one of the table (int64), the table.
 * Lengths: rows, columns, rows of the table. */
KERNEL(add_rows)
{
    const word n = dims[1], *places = (const word *)data[1];
    UNUSED;
    for (word row = 0; row < dims[0]; row++) {
        const REAL *RESTRICT from = (const REAL *)data[0] + row * n;
        if (places[row] < 0 || places[row] >= dims[2])
            return 1;
        REAL *RESTRICT to = (REAL *)data[2] + places[row] * n;
        for (word k = 0; k < n; k++)
            to[k] += from[k];
    }
    return 0;
}

/* ---------------------------------------------------------------- attention */

/* Make masked scores of a row -inf, and return from where on all are masked: where it is causal a row has one more than
 * the row before. It is rounded up to LANES, as what is left over of a loop is computed number by number. */
INLINE word OF_TYPE(mask_row)(REAL *RESTRICT x, const uint8_t *RESTRICT masked, word row, const word *dims, int causal,
                              word first)
{
    const word n = dims[1], all = causal ? first + row % dims[2] + 1 : n, seen = all < n ? all : n;
    const word rounded = (seen + LANES - 1) / LANES * LANES, end = rounded < n ? rounded : n;
    if (masked)
        for (word k = 0; k < end; k++)
            x[k] = masked[row * n + k] ? -(REAL)INFINITY : x[k];
    for (word k = seen / LANES * LANES; k < end; k++) /* whole vectors, as they are read next */
        x[k] = k < seen ? x[k] : -(REAL)INFINITY;
    return end;
}

/* Arrays: whether a score is masked (bool), scores, sums of rows, factor times the largest of each row. In place of the
 * scores come exp(factor (score - largest of the row)). Of rows where all is masked these are 0, the sum 1, and
 * the largest infinite. Lengths: rows, columns, rows of a matrix. Numbers: a positive factor, whether it is causal,
 * the number of the first row, and whether there is a mask. */
KERNEL(attention)
{
    const word n = dims[1];
    const double *numbers = (const double *)context;
    const REAL factor = (REAL)numbers[0];
    UNUSED;
    for (word row = 0; row < dims[0]; row++) {
        REAL *x = (REAL *)data[1] + row * n;
        const uint8_t *masked = numbers[3] != 0 ? (const uint8_t *)data[0] : 0;
        const word seen = OF_TYPE(mask_row)(x, masked, row, dims, numbers[1] != 0, (word)numbers[2]);
        const REAL most = OF_TYPE(largest)(x, seen), top = most == -(REAL)INFINITY ? 0 : most;
        for (word k = 0; k < seen; k++)
            x[k] = OF_TYPE(exp_below)((x[k] - top) * factor);
        for (word k = seen; k < n; k++)
            x[k] = 0;
        const REAL total = (REAL)OF_TYPE(sum)(x, seen);
        ((REAL *)data[2])[row] = total == 0 ? 1 : total;
        ((REAL *)data[3])[row] = total == 0 ? (REAL)INFINITY : top * factor;
    }
    return 0;
}

/* Arrays: whether a score is masked (bool), the logarithms of sums, what is subtracted from the cotangents, scores, and
 * cotangents of the weights. In place of the last two come the weights, exp(score - logarithm), and the cotangents of
 * the scores. Lengths: as above. Numbers: whether it is causal, the number of the first row, whether there is a mask. */
KERNEL(attention_vjp)
{
    const word n = dims[1];
    const double *numbers = (const double *)context;
    UNUSED;
    for (word row = 0; row < dims[0]; row++) {
        const REAL log_total = ((const REAL *)data[1])[row], level = ((const REAL *)data[2])[row];
        REAL *RESTRICT x = (REAL *)data[3] + row * n, *RESTRICT d = (REAL *)data[4] + row * n;
        const uint8_t *masked = numbers[2] != 0 ? (const uint8_t *)data[0] : 0;
        const word seen = OF_TYPE(mask_row)(x, masked, row, dims, numbers[0] != 0, (word)numbers[1]);
        for (word k = 0; k < seen; k++) {
            x[k] = OF_TYPE(exp_below)(x[k] - log_total);
            d[k] = (d[k] - level) * x[k];
        }
        for (word k = seen; k < n; k++)
            x[k] = d[k] = 0;
    }
    return 0;
}

/* ---------------------------------------------------------------- normalisation */

/* The normalised values a are (x - mean) / std: derivatives compute them again, as to write and to read them takes
 * longer. */
INLINE REAL OF_TYPE(normal)(REAL x, REAL mean, REAL rstd)
{
    return (x - mean) * rstd;
}

/* Write x - mean for a row, and the mean, which is 0 unless `centred`, and return 1/std. */
FOR_EACH_PROCESSOR static REAL OF_TYPE(centre)(const REAL *RESTRICT x, REAL *RESTRICT y, word n, double eps,
                                               int centred, REAL *mean)
{
    const REAL by = *mean = centred ? (REAL)(OF_TYPE(sum)(x, n) / (double)n) : 0;
    for (word k = 0; k < n; k++)
        y[k] = x[k] - by;
    return (REAL)(1 / sqrt(OF_TYPE(dot)(y, y, n) / (double)n + eps));
}

/* Arrays: x, weight, bias, result, mean, 1/std. Lengths: rows, columns. Numbers: eps, whether there is a weight, a
 * bias, and whether values are centred. */
KERNEL(norm_rows)
{
    const word n = dims[1];
    const double *numbers = (const double *)context;
    const REAL *RESTRICT weight = (const REAL *)data[1], *RESTRICT bias = (const REAL *)data[2];
    UNUSED;
    for (word row = 0; row < dims[0]; row++) {
        const REAL *x = (const REAL *)data[0] + row * n;
        REAL *RESTRICT y = (REAL *)data[3] + row * n, *mean = (REAL *)data[4] + row;
        const REAL rstd = OF_TYPE(centre)(x, y, n, numbers[0], numbers[3] != 0, mean);
        ((REAL *)data[5])[row] = rstd;
        if (numbers[1] != 0 && numbers[2] != 0)
            for (word k = 0; k < n; k++)
                y[k] = y[k] * rstd * weight[k] + bias[k];
        else
            for (word k = 0; k < n; k++)
                y[k] = y[k] * rstd * (numbers[1] != 0 ? weight[k] : 1) + (numbers[2] != 0 ? bias[k] : 0);
    }
    return 0;
}

/* For a row of h, the cotangent times the weight: return the sum of h a, and add that of h to `level`; add g a to
 * `parts` and g to `part`. */
INLINE double OF_TYPE(sums_of_row)(const REAL *RESTRICT g, const REAL *RESTRICT weight, const REAL *RESTRICT x, word n,
                                   REAL mean, REAL rstd, int weighs, REAL *RESTRICT parts, REAL *RESTRICT part,
                                   double *level)
{
    double slope = 0;
    for (word start = 0; start < n; start += STRIP) {
        const word end = n - start < STRIP ? n : start + STRIP;
        REAL slopes[LANES] = {0}, levels[LANES] = {0};
        word k = start;
        for (; k + LANES <= end; k += LANES)
            for (int l = 0; l < LANES; l++) {
                const REAL a = OF_TYPE(normal)(x[k + l], mean, rstd), h = weighs ? g[k + l] * weight[k + l] : g[k + l];
                slopes[l] += h * a;
                levels[l] += h;
                parts[k + l] += g[k + l] * a;
                part[k + l] += g[k + l];
            }
        for (int l = 0; k < end; k++, l++) {
            const REAL a = OF_TYPE(normal)(x[k], mean, rstd), h = weighs ? g[k] * weight[k] : g[k];
            slopes[l] += h * a;
            levels[l] += h;
            parts[k] += g[k] * a;
            part[k] += g[k];
        }
        slope += OF_TYPE(added)(slopes);
        *level += OF_TYPE(added)(levels);
    }
    return slope;
}

/* Arrays: cotangent, weight, x, mean, 1/std, the cotangent of x, those of weight and bias, scratch like these two.
 * Lengths: rows, columns. Numbers: whether there is a weight, and whether values are centred. What is added up for the
 * weight and the bias is so over ROWS rows, and then these sums. */
KERNEL(norm_rows_vjp)
{
    const word n = dims[1];
    const int weighs = ((const double *)context)[0] != 0, centred = ((const double *)context)[1] != 0;
    const REAL *RESTRICT weight = (const REAL *)data[1];
    REAL *RESTRICT sums = (REAL *)data[6], *RESTRICT parts = (REAL *)data[7];
    UNUSED;
    for (word k = 0; k < 2 * n; k++)
        sums[k] = parts[k] = 0;
    for (word row = 0; row < dims[0]; row++) {
        const REAL *RESTRICT g = (const REAL *)data[0] + row * n, *RESTRICT x = (const REAL *)data[2] + row * n;
        REAL *RESTRICT made = (REAL *)data[5] + row * n;
        const REAL mean = ((const REAL *)data[3])[row], rstd = ((const REAL *)data[4])[row];
        double level = 0;
        const double slope =
            weighs ? OF_TYPE(sums_of_row)(g, weight, x, n, mean, rstd, 1, parts, parts + n, &level)
                   : OF_TYPE(sums_of_row)(g, weight, x, n, mean, rstd, 0, parts, parts + n, &level);
        const REAL by_values = (REAL)(slope / (double)n), shift = centred ? (REAL)(level / (double)n) : 0;
        if (weighs)
            for (word k = 0; k < n; k++)
                made[k] = (g[k] * weight[k] - shift - OF_TYPE(normal)(x[k], mean, rstd) * by_values) * rstd;
        else
            for (word k = 0; k < n; k++)
                made[k] = (g[k] - shift - OF_TYPE(normal)(x[k], mean, rstd) * by_values) * rstd;
        if (row % ROWS == ROWS - 1 || row == dims[0] - 1)
            for (word k = 0; k < 2 * n; k++) {
                sums[k] += parts[k];
                parts[k] = 0;
            }
    }
    return 0;
}

/* Arrays: x, weight, bias, result, mean, 1/std. Lengths: rows, channels of a row, values of a channel, channels in all.
 * Numbers: eps, whether there is a weight, and a bias. */
KERNEL(norm_groups)
{
    const word each = dims[1], size = dims[2], n = each * size, channels = dims[3];
    const double *numbers = (const double *)context;
    UNUSED;
    for (word row = 0; row < dims[0]; row++) {
        const REAL *x = (const REAL *)data[0] + row * n;
        REAL *mean = (REAL *)data[4] + row;
        const REAL rstd = OF_TYPE(centre)(x, (REAL *)data[3] + row * n, n, numbers[0], 1, mean);
        ((REAL *)data[5])[row] = rstd;
        for (word c = row * each; c < (row + 1) * each; c++) {
            const REAL weight = numbers[1] != 0 ? ((const REAL *)data[1])[c % channels] : 1;
            const REAL bias = numbers[2] != 0 ? ((const REAL *)data[2])[c % channels] : 0;
            REAL *y = (REAL *)data[3] + c * size;
            for (word k = 0; k < size; k++)
                y[k] = y[k] * rstd * weight + bias;
        }
    }
    return 0;
}

/* The sum of g, and of g a, with a written into `a`. */
FOR_EACH_PROCESSOR static double OF_TYPE(sums_of)(const REAL *RESTRICT g, const REAL *RESTRICT x, REAL *RESTRICT a,
                                                  word n, REAL mean, REAL rstd, double *level)
{
    for (word k = 0; k < n; k++)
        a[k] = OF_TYPE(normal)(x[k], mean, rstd);
    *level += OF_TYPE(sum)(g, n);
    return OF_TYPE(dot)(g, a, n);
}

/* Arrays: cotangent, weight, x, mean, 1/std, the cotangent of x, and those of weight and bias for each channel of each
 * image. Lengths: as above. Numbers: whether there is a weight. */
KERNEL(norm_groups_vjp)
{
    const word each = dims[1], size = dims[2], n = each * size, channels = dims[3];
    const int weighs = ((const double *)context)[0] != 0;
    const REAL *weight = (const REAL *)data[1];
    UNUSED;
    for (word row = 0; row < dims[0]; row++) {
        const REAL mean = ((const REAL *)data[3])[row], rstd = ((const REAL *)data[4])[row];
        double slope = 0, level = 0;
        for (word c = row * each; c < (row + 1) * each; c++) {
            const REAL *g = (const REAL *)data[0] + c * size, *x = (const REAL *)data[2] + c * size;
            double total = 0, w = weighs ? (double)weight[c % channels] : 1;
            const double product = OF_TYPE(sums_of)(g, x, (REAL *)data[5] + c * size, size, mean, rstd, &total);
            ((REAL *)data[6])[c] = (REAL)product;
            ((REAL *)data[6])[dims[0] * each + c] = (REAL)total;
            slope += w * product;
            level += w * total;
        }
        const REAL by_values = (REAL)(slope / (double)n) * rstd, shift = (REAL)(level / (double)n) * rstd;
        for (word c = row * each; c < (row + 1) * each; c++) {
            const REAL scale = (weighs ? weight[c % channels] : 1) * rstd;
            const REAL *RESTRICT g = (const REAL *)data[0] + c * size;
            REAL *RESTRICT made = (REAL *)data[5] + c * size;
            for (word k = 0; k < size; k++)
                made[k] = g[k] * scale - made[k] * by_values - shift;
        }
    }
    return 0;
}

/* Copy runs of `size` numbers, each `move` after the one before, to where they follow one another, and back. */
INLINE void OF_TYPE(join_runs)(const REAL *x, word count, word size, word move, REAL *RESTRICT made)
{
    for (word run = 0; run < count; run++)
        memcpy(made + run * size, x + run * move, size * sizeof(REAL));
}

INLINE void OF_TYPE(part_runs)(const REAL *joined, word count, word size, word move, REAL *RESTRICT made)
{
    for (word run = 0; run < count; run++)
        memcpy(made + run * move, joined + run * size, size * sizeof(REAL));
}

/* How many images' values of a channel to join, where they are so few that loops over them would be short: those of
 * 7 x 7 pixels take half of the time. */
INLINE word OF_TYPE(images_to_join)(word images, word size)
{
    const word fitting = size < SHORT ? JOINED / size : 1;
    return fitting < images ? fitting : images;
}

/* Arrays: x, weight, bias, result, mean, 1/std, variance. Lengths: images, channels, values of a channel. Numbers: eps,
 * whether there is a weight, and a bias. Statistics are those of a channel of all images. */
KERNEL(norm_channels)
{
    const word images = dims[0], channels = dims[1], size = dims[2], move = channels * size;
    const word most = OF_TYPE(images_to_join)(images, size);
    const double *numbers = (const double *)context, count = (double)(images * size);
    ALIGNED REAL joined[JOINED];
    UNUSED;
    for (word c = 0; c < channels; c++) {
        const REAL *x = (const REAL *)data[0] + c * size;
        double total = 0, squares = 0;
        for (word p = 0; p < images; p += most) {
            const word some = images - p < most ? images - p : most;
            if (most > 1)
                OF_TYPE(join_runs)(x + p * move, some, size, move, joined);
            total += OF_TYPE(sum)(most > 1 ? joined : x + p * move, some * size);
        }
        const REAL mean = (REAL)(total / count);
        for (word p = 0; p < images; p += most) {
            const word some = images - p < most ? images - p : most;
            if (most > 1 && most < images)
                OF_TYPE(join_runs)(x + p * move, some, size, move, joined);
            for (word start = 0; start < some * size; start += PIECE) {
                REAL a[PIECE];
                const word n = some * size - start < PIECE ? some * size - start : PIECE;
                const REAL *RESTRICT from = (most > 1 ? joined : x + p * move) + start;
                for (word k = 0; k < n; k++)
                    a[k] = from[k] - mean;
                squares += OF_TYPE(dot)(a, a, n);
            }
        }
        const REAL rstd = (REAL)(1 / sqrt(squares / count + numbers[0]));
        const REAL weight = numbers[1] != 0 ? ((const REAL *)data[1])[c] : 1;
        const REAL bias = numbers[2] != 0 ? ((const REAL *)data[2])[c] : 0;
        ((REAL *)data[4])[c] = mean;
        ((REAL *)data[5])[c] = rstd;
        ((REAL *)data[6])[c] = (REAL)(squares / count);
        for (word p = 0; p < images; p += most) {
            const word some = images - p < most ? images - p : most;
            REAL *y = (REAL *)data[3] + p * move + c * size, *made = most > 1 ? joined : y;
            const REAL *from = most > 1 ? joined : x + p * move;
            if (most > 1 && most < images)
                OF_TYPE(join_runs)(x + p * move, some, size, move, joined);
            APART_OR_SAME
            for (word k = 0; k < some * size; k++)
                made[k] = OF_TYPE(normal)(from[k], mean, rstd) * weight + bias;
            if (most > 1)
                OF_TYPE(part_runs)(joined, some, size, move, y);
        }
    }
    return 0;
}

/* Arrays: cotangent, weight, x, mean, 1/std, the cotangents of x, weight and bias. Lengths: as above. Numbers: whether
 * there is a weight. */
KERNEL(norm_channels_vjp)
{
    const word images = dims[0], channels = dims[1], size = dims[2], move = channels * size;
    const word most = OF_TYPE(images_to_join)(images, size);
    const double count = (double)(images * size);
    ALIGNED REAL joined_g[JOINED], joined_x[JOINED];
    UNUSED;
    for (word c = 0; c < channels; c++) {
        const REAL mean = ((const REAL *)data[3])[c], rstd = ((const REAL *)data[4])[c];
        const REAL *g = (const REAL *)data[0] + c * size, *x = (const REAL *)data[2] + c * size;
        double slope = 0, level = 0;
        for (word p = 0; p < images; p += most) {
            const word some = images - p < most ? images - p : most;
            if (most > 1) {
                OF_TYPE(join_runs)(g + p * move, some, size, move, joined_g);
                OF_TYPE(join_runs)(x + p * move, some, size, move, joined_x);
            }
            for (word start = 0; start < some * size; start += PIECE) {
                REAL a[PIECE];
                const word n = some * size - start < PIECE ? some * size - start : PIECE;
                slope += OF_TYPE(sums_of)((most > 1 ? joined_g : g + p * move) + start,
                                          (most > 1 ? joined_x : x + p * move) + start, a, n, mean, rstd, &level);
            }
        }
        ((REAL *)data[6])[c] = (REAL)slope;
        ((REAL *)data[7])[c] = (REAL)level;
        const REAL scale = ((const double *)context)[0] != 0 ? ((const REAL *)data[1])[c] * rstd : rstd;
        const REAL by_values = (REAL)(slope / count), shift = (REAL)(level / count);
        for (word p = 0; p < images; p += most) {
            const word some = images - p < most ? images - p : most;
            REAL *to = (REAL *)data[5] + p * move + c * size, *made = most > 1 ? joined_x : to;
            const REAL *from_g = most > 1 ? joined_g : g + p * move, *from_x = most > 1 ? joined_x : x + p * move;
            if (most > 1 && most < images) {
                OF_TYPE(join_runs)(g + p * move, some, size, move, joined_g);
                OF_TYPE(join_runs)(x + p * move, some, size, move, joined_x);
            }
            APART_OR_SAME
            for (word k = 0; k < some * size; k++)
                made[k] = (from_g[k] - OF_TYPE(normal)(from_x[k], mean, rstd) * by_values - shift) * scale;
            if (most > 1)
                OF_TYPE(part_runs)(joined_x, some, size, move, to);
        }
    }
    return 0;
}

/* ---------------------------------------------------------------- max pooling */

/* Write each stride-th number of a row, from each of the first, one after the other: `slots` of each. */
INLINE void OF_TYPE(split_by_phase)(const REAL *RESTRICT row, REAL *RESTRICT phases, word slots, word stride)
{
    if (stride == 2)
        for (word start = 0; start < slots; start += LANES)
            for (int l = 0; l < LANES; l++) {
                const REAL even = row[2 * (start + l)], odd = row[2 * (start + l) + 1];
                phases[start + l] = even;
                phases[slots + start + l] = odd;
            }
    else
        for (word phase = 0; phase < stride; phase++)
            for (word k = 0; k < slots; k++)
                phases[phase * slots + k] = row[k * stride + phase];
}

/* The largest of x, y and z, and its tap, for LANES windows. Of equal ones the first, of NaN the last. `found` may be
 * x, and `which` of_x. Numbers in between are in registers: a loop for each tap would wait for its own stores. */
INLINE void OF_TYPE(largest_of_three)(const REAL *x, const REAL *y, const REAL *z, const INTEGER *of_x,
                                      const INTEGER *of_y, const INTEGER *of_z, INTEGER tap_y, INTEGER tap_z,
                                      REAL *found, INTEGER *which)
{
    APART_OR_SAME
    for (int l = 0; l < LANES; l++) {
        const INTEGER at_y = of_y[l] + tap_y, at_z = of_z[l] + tap_z;
        const int by_y = (y[l] > x[l]) | (y[l] != y[l]);
        const REAL larger = by_y ? y[l] : x[l];
        const INTEGER at = by_y ? at_y : of_x[l];
        const int by_z = (z[l] > larger) | (z[l] != z[l]);
        found[l] = by_z ? z[l] : larger;
        which[l] = by_z ? at_z : at;
    }
}

/* Arrays: x, the largest number of each window, its tap (uint8), scratch. Lengths: planes, rows and columns of a plane,
 * of windows, of taps. Numbers: stride, padding and dilation, each of rows and of columns.
 *
 * Each row of a plane, with padding, is split so that neighbouring windows read neighbouring numbers. The largest of
 * each row of a window is found, and then the largest of these. All loops are over blocks of LANES: what they compute
 * beyond the last window is overwritten, or never read. */
KERNEL(max_pool2d)
{
    const double *numbers = (const double *)context;
    const word height = dims[1], width = dims[2], rows = dims[3], columns = dims[4], down = dims[5], right = dims[6];
    const word move = (word)numbers[0], stride = (word)numbers[1], above = (word)numbers[2], left = (word)numbers[3];
    const word gap_down = (word)numbers[4], gap = (word)numbers[5], span = (right - 1) * gap + 1;
    /* whether windows of all rows are as those of one long row */
    const int is_whole = stride * columns == width && left == 0 && span <= stride;
    const word lines = is_whole ? 1 : height, windows = is_whole ? height * columns : columns;
    const word slots = (windows + (span - 1) / stride + LANES - 1) / LANES * LANES, length = height * width / lines;
    const word read = length < slots * stride - left ? length : slots * stride - left, end = dims[0] * rows * columns;
    const word pitch = slots * stride;
    const REAL *x = (const REAL *)data[0];
    REAL *image = (REAL *)data[3], *phases = stride > 1 ? image + lines * pitch : image, *best = phases + lines * pitch;
    INTEGER *which = (INTEGER *)(best + lines * windows + LANES), *firsts = which + lines * windows + LANES;
    const INTEGER none[LANES] = {0};
    word places[256]; /* of what a tap reads, in the phases of a line */
    UNUSED;
    for (word tap = 0; tap < right; tap++)
        places[tap] = tap * gap % stride * slots + tap * gap / stride;
    for (REAL *at = image; at < best; at++)
        *at = -(REAL)INFINITY;
    for (word k = 0; k < windows + LANES; k++)
        firsts[k] = k < windows && k * stride < left ? (INTEGER)((left - k * stride + gap - 1) / gap) : 0;
    for (word plane = 0; plane < dims[0]; plane++) {
        /* line by line, each of the three: what has just been stored is not to be read at once */
        for (word line = 0; line < lines; line++)
            memcpy(image + line * pitch + left, x + (plane * lines + line) * length, read * sizeof(REAL));
        for (word line = 0; stride > 1 && line < lines; line++)
            OF_TYPE(split_by_phase)(image + line * pitch, phases + line * pitch, slots, stride);
        for (word line = 0; line < lines; line++)
            for (word tap = right > 1; tap < right; tap += 2) { /* with the first, or the largest up to here */
                const word next = tap + 1 < right ? tap + 1 : tap;
                const REAL *from = phases + line * pitch, *y = from + places[tap], *z = from + places[next];
                REAL *found = best + line * windows;
                INTEGER *at = which + line * windows;
                const REAL *before = tap > 1 ? found : from;
                const INTEGER *of_before = tap > 1 ? at : firsts;
                for (word k = 0; k < windows; k += LANES)
                    OF_TYPE(largest_of_three)(before + k, y + k, z + k, of_before + k, none, none, (INTEGER)tap,
                                              (INTEGER)next, found + k, at + k);
            }
        for (word line = 0; line < rows; line++) {
            const word top = line * move - above, to = (plane * rows + line) * columns;
            word first = 0, last = down; /* taps that are not in the padding */
            while (top + first * gap_down < 0)
                first++;
            while (top + (last - 1) * gap_down >= height)
                last--;
            for (word k = 0; k < columns; k += LANES) {
                const int fits = to + k + LANES <= end;
                REAL most[LANES], *found = fits ? (REAL *)data[1] + to + k : most;
                INTEGER taps[LANES];
                uint8_t small[LANES], *at = fits ? (uint8_t *)data[2] + to + k : small;
                const REAL *before = best + (top + first * gap_down) * columns + k;
                const INTEGER *of_before = which + (top + first * gap_down) * columns + k;
                for (word tap = first + (last > first + 1); tap < last; tap += 2) {
                    const word next = tap + 1 < last ? tap + 1 : tap;
                    const word y = (top + tap * gap_down) * columns + k, z = (top + next * gap_down) * columns + k;
                    OF_TYPE(largest_of_three)(before, best + y, best + z, of_before, which + y, which + z,
                                              (INTEGER)((tap - first) * right), (INTEGER)((next - first) * right),
                                              found, taps);
                    before = found, of_before = taps;
                }
                for (int l = 0; l < LANES; l++)
                    at[l] = (uint8_t)(taps[l] + (INTEGER)(first * right));
                if (!fits) {
                    memcpy((REAL *)data[1] + to + k, most, (columns - k) * sizeof(REAL));
                    memcpy((uint8_t *)data[2] + to + k, small, columns - k);
                }
            }
        }
    }
    return 0;
}

/* Arrays: cotangents of the windows, their taps (uint8), the cotangent of x. Lengths: planes, rows and columns of a
 * plane, of windows, of taps. Numbers: stride, padding and dilation, each of rows and of columns. */
KERNEL(max_pool2d_vjp)
{
    const double *numbers = (const double *)context;
    const word height = dims[1], width = dims[2], rows = dims[3], columns = dims[4], right = dims[6];
    const word stride[] = {(word)numbers[0], (word)numbers[1]}, padding[] = {(word)numbers[2], (word)numbers[3]};
    word moves[256];
    UNUSED;
    for (word tap = 0; tap < 256; tap++)
        moves[tap] = tap / right * (word)numbers[4] * width + tap % right * (word)numbers[5];
    memset(data[2], 0, dims[0] * height * width * sizeof(REAL));
    for (word row = 0; row < dims[0] * rows; row++) {
        const REAL *g = (const REAL *)data[0] + row * columns;
        const uint8_t *which = (const uint8_t *)data[1] + row * columns;
        REAL *plane = (REAL *)data[2] + row / rows * height * width;
        const word start = (row % rows * stride[0] - padding[0]) * width - padding[1];
        for (word k = 0; k < columns; k++) {
            const word place = start + k * stride[1] + moves[which[k]];
            if (place < 0 || place >= height * width)
                return 1;
            plane[place] += g[k];
        }
    }
    return 0;
}

/* ---------------------------------------------------------------- average pooling */

/* The first number in scratch that begins a line of the cache. */
INLINE REAL *OF_TYPE(line_from)(REAL *x)
{
    return x + (word)(-(uintptr_t)x % LINE / sizeof(REAL));
}

/* Write sums of rows, each `step` numbers after the one before, LANES at a time; `is_last` where what follows the last
 * row may not be read. */
INLINE void OF_TYPE(sum_rows)(const REAL *x, word n, word count, word step, int is_last, REAL *RESTRICT made)
{
    const word whole = is_last ? n / LANES * LANES : n;
    for (word k = 0; k < whole; k += LANES) {
        REAL total[LANES];
        for (int l = 0; l < LANES; l++)
            total[l] = x[k + l];
        for (word row = 1; row < count; row++)
            for (int l = 0; l < LANES; l++)
                total[l] += x[row * step + k + l];
        memcpy(made + k, total, sizeof(total));
    }
    for (word k = whole; k < n; k++) {
        REAL total = x[k];
        for (word row = 1; row < count; row++)
            total += x[row * step + k];
        made[k] = total;
    }
}

/* Arrays: x, what each window is divided by, with LANES numbers more, scratch, means. Lengths: as for max pooling.
 * Numbers: stride and padding, each of rows and of columns. The rows of a window are added up, then split so that
 * neighbouring windows read neighbouring numbers. Blocks of LANES go beyond the last window, into scratch. */
KERNEL(avg_pool2d)
{
    const double *numbers = (const double *)context;
    const word height = dims[1], width = dims[2], rows = dims[3], columns = dims[4], down = dims[5], right = dims[6];
    const word move = (word)numbers[0], stride = (word)numbers[1], above = (word)numbers[2], left = (word)numbers[3];
    const word slots = (columns + (right - 1) / stride + 2 * LANES - 1) / LANES * LANES, pitch = slots * stride;
    const word read = width < pitch - left ? width : pitch - left;
    const word end = dims[0] * rows * columns, step = (pitch + 2 * LANES - 1) / LANES * LANES;
    REAL *lines = OF_TYPE(line_from)((REAL *)data[2]), *split = stride > 1 ? lines + rows * step : lines;
    UNUSED;
    memset(lines, 0, rows * step * sizeof(REAL));
    for (word plane = 0, to = 0; plane < dims[0]; plane++) {
        /* row by row, each of the three: what has just been stored is not to be read at once */
        for (word row = 0; row < rows; row++) {
            const word top = row * move - above, first = top < 0 ? 0 : top;
            const word last = top + down > height ? height : top + down;
            const REAL *from = (const REAL *)data[0] + (plane * height + first) * width;
            REAL *line = lines + row * step + left;
            OF_TYPE(sum_rows)(from, read, last - first, width, plane == dims[0] - 1 && last == height, line);
            for (int l = 0; l < LANES; l++)
                line[read + l] = 0;
        }
        for (word row = 0; stride > 1 && row < rows; row++)
            OF_TYPE(split_by_phase)(lines + row * step, split + row * step, slots, stride);
        for (word row = 0; row < rows; row++, to += columns)
            for (word k = 0; k < columns; k += LANES) {
                const REAL *by = (const REAL *)data[1] + row * columns + k, *phases = split + row * step + k;
                const REAL *one = phases;
                REAL total[LANES];
                for (int l = 0; l < LANES; l++)
                    total[l] = one[l];
                for (word phase = 0; phase < stride && phase < right; phase++, one = phases + phase * slots)
                    for (word tap = phase; tap < right; tap += stride, one++)
                        for (int l = 0; tap && l < LANES; l++)
                            total[l] += one[l];
                for (int l = 0; l < LANES; l++)
                    total[l] /= by[l];
                if (to + k + LANES <= end)
                    memcpy((REAL *)data[3] + to + k, total, sizeof(total));
                else
                    memcpy((REAL *)data[3] + to + k, total, (columns - k) * sizeof(REAL));
            }
    }
    return 0;
}

/* The sums of shares of windows for LANES numbers of one phase of a row. */
INLINE void OF_TYPE(sum_shares)(const REAL *shares, word right, word stride, word phase, REAL *RESTRICT total)
{
    if (phase >= right)
        for (int l = 0; l < LANES; l++)
            total[l] = 0;
    else
        for (int l = 0; l < LANES; l++)
            total[l] = shares[l];
    for (word tap = phase + stride; tap < right; tap += stride) {
        shares--;
        for (int l = 0; l < LANES; l++)
            total[l] += shares[l];
    }
}

/* Add shares of windows to the numbers of a row, phase by phase. */
INLINE void OF_TYPE(spread_shares)(const REAL *shares, word slots, word right, word stride, REAL *RESTRICT line)
{
    for (word k = 0; k < slots; k += LANES) {
        REAL even[LANES], odd[LANES];
        if (stride == 1)
            OF_TYPE(sum_shares)(shares + k, right, 1, 0, line + k);
        else if (stride == 2) {
            OF_TYPE(sum_shares)(shares + k, right, 2, 0, even);
            OF_TYPE(sum_shares)(shares + k, right, 2, 1, odd);
            for (int l = 0; l < LANES; l++) {
                line[2 * (k + l)] = even[l];
                line[2 * (k + l) + 1] = odd[l];
            }
        } else
            for (word phase = 0; phase < stride; phase++) {
                OF_TYPE(sum_shares)(shares + k, right, stride, phase, even);
                for (int l = 0; l < LANES; l++)
                    line[stride * (k + l) + phase] = even[l];
            }
    }
}

/* Arrays: cotangents of the means, divisors, scratch, cotangents of x. Lengths and numbers: as above. Shares of windows
 * lie between zeros. */
KERNEL(avg_pool2d_vjp)
{
    const double *numbers = (const double *)context;
    const word height = dims[1], width = dims[2], rows = dims[3], columns = dims[4], down = dims[5], right = dims[6];
    const word move = (word)numbers[0], stride = (word)numbers[1], above = (word)numbers[2], left = (word)numbers[3];
    const word whole = (columns + LANES - 1) / LANES * LANES, before = ((right - 1) / stride + LANES - 1) / LANES * LANES;
    const word slots = ((left + width + stride - 1) / stride + LANES - 1) / LANES * LANES;
    const word pitch = before + (whole > slots ? whole : slots);
    const REAL *divisors = (const REAL *)data[1];
    REAL *shares = OF_TYPE(line_from)((REAL *)data[2]), *sums = shares + rows * pitch, *line = sums + pitch;
    UNUSED;
    memset(shares, 0, (rows + 1) * pitch * sizeof(REAL));
    for (word plane = 0; plane < dims[0]; plane++) {
        for (word row = 0; row < rows; row++) {
            const REAL *RESTRICT g = (const REAL *)data[0] + (plane * rows + row) * columns;
            REAL *RESTRICT share = shares + row * pitch + before;
            const int is_last = plane == dims[0] - 1 && row == rows - 1;
            OF_TYPE(sum_rows)(g, columns, 1, 0, is_last, share);
            for (word k = 0; k < whole; k += LANES)
                for (int l = 0; l < LANES; l++)
                    share[k + l] /= divisors[row * columns + k + l];
            for (word k = columns; k < whole; k++)
                share[k] = 0;
        }
        for (word y = 0, known = -1, count_known = -1; y < height; y++) {
            const word under = y + above - down + 1, first = under > 0 ? (under + move - 1) / move : 0;
            const word over = (y + above) / move + 1, count = (over < rows ? over : rows) - first;
            const REAL *from = shares + first * pitch;
            if (first != known || count != count_known) {
                if (count > 1)
                    OF_TYPE(sum_rows)(from + before, pitch - before, count, pitch, 0, sums + before);
                if (count > 0)
                    OF_TYPE(spread_shares)((count > 1 ? sums : from) + before, slots, right, stride, line);
                else
                    memset(line, 0, slots * stride * sizeof(REAL));
                known = first;
                count_known = count;
            }
            memcpy((REAL *)data[3] + (plane * height + y) * width, line + left, width * sizeof(REAL));
        }
    }
    return 0;
}

/* ---------------------------------------------------------------- optimisers */

/* What precedes a step: shrinks the parameters, and returns the gradient, or what is to be used instead of it, in
 * `made`. All is rounded as where NumPy computes the step, call by call. */
INLINE const REAL *OF_TYPE(prepared)(REAL *RESTRICT p, const REAL *RESTRICT g, word n, const double *numbers,
                                     REAL *RESTRICT made)
{
    const int flags = (int)numbers[0];
    const REAL decay = (REAL)numbers[1], shrink = (REAL)numbers[2];
    if (flags & SHRINKS)
        for (word k = 0; k < n; k++)
            p[k] *= shrink;
    if (flags & MAXIMIZES)
        for (word k = 0; k < n; k++)
            made[k] = -g[k];
    if (flags & DECAYS) {
        const REAL *from = flags & MAXIMIZES ? made : g;
        APART_OR_SAME
        for (word k = 0; k < n; k++)
            made[k] = from[k] + p[k] * decay;
    }
    return flags & (MAXIMIZES | DECAYS) ? made : g;
}

/* How many of n numbers of parameters to compute at a time, from `start`: up to PIECE, and first as many as lie before a
 * line of the cache. Large arrays begin 16 bytes after a page, all of them; without this each vector would be in two
 * lines, and a step of Adam takes twice the time. */
INLINE word OF_TYPE(piece_of)(const REAL *p, word start, word n)
{
    const word before = start ? 0 : (word)(-(uintptr_t)p % LINE / sizeof(REAL)), most = before ? before : PIECE;
    return n - start < most ? n - start : most;
}

/* Arrays: gradient, parameters, means of gradients, means of squares. Length: their number. Numbers: flags, weight
 * decay, shrinking, and the constants of the step, as in gradmgr/optim/_algorithms.py. */
KERNEL(adam)
{
    const double *numbers = (const double *)context;
    const REAL c2 = (REAL)numbers[3], c3 = (REAL)numbers[4], c4 = (REAL)numbers[5], c5 = (REAL)numbers[6];
    const REAL c6 = (REAL)numbers[7];
    UNUSED;
    for (word start = 0, n; start < dims[0]; start += n) {
        REAL changed[PIECE], *RESTRICT p = (REAL *)data[1] + start;
        REAL *RESTRICT m = (REAL *)data[2] + start, *RESTRICT v = (REAL *)data[3] + start;
        n = OF_TYPE(piece_of)((REAL *)data[1], start, dims[0]);
        const REAL *RESTRICT g = OF_TYPE(prepared)(p, (const REAL *)data[0] + start, n, numbers, changed);
        for (word k = 0; k < n; k++) {
            /* All are read before one is written: the processor takes addresses that are equal in their last 12 bits,
             * as here, for the same at first. */
            const REAL slope = g[k], before = p[k], mean = m[k] + (slope - m[k]) * c2;
            const REAL square = v[k] * c3 + slope * slope * c4;
            m[k] = mean;
            v[k] = square;
            p[k] = before - mean / (ROOT(square) * c5 + c6);
        }
    }
    return 0;
}

/* Arrays: gradient, parameters. Numbers: flags, weight decay, shrinking, learning rate. */
KERNEL(sgd)
{
    const double *numbers = (const double *)context;
    const REAL rate = (REAL)numbers[3];
    UNUSED;
    for (word start = 0, n; start < dims[0]; start += n) {
        REAL changed[PIECE], *RESTRICT p = (REAL *)data[1] + start;
        n = OF_TYPE(piece_of)((REAL *)data[1], start, dims[0]);
        const REAL *RESTRICT g = OF_TYPE(prepared)(p, (const REAL *)data[0] + start, n, numbers, changed);
        for (word k = 0; k < n; k++)
            p[k] -= g[k] * rate;
    }
    return 0;
}

/* Arrays: gradient, parameters, buffer. Numbers: flags, weight decay, shrinking, learning rate, momentum. */
KERNEL(sgd_momentum)
{
    const double *numbers = (const double *)context;
    const REAL rate = (REAL)numbers[3], momentum = (REAL)numbers[4];
    UNUSED;
    for (word start = 0, n; start < dims[0]; start += n) {
        REAL changed[PIECE], *RESTRICT p = (REAL *)data[1] + start, *RESTRICT b = (REAL *)data[2] + start;
        n = OF_TYPE(piece_of)((REAL *)data[1], start, dims[0]);
        const REAL *RESTRICT g = OF_TYPE(prepared)(p, (const REAL *)data[0] + start, n, numbers, changed);
        for (word k = 0; k < n; k++) {
            const REAL before = p[k], mean = b[k] * momentum + g[k];
            b[k] = mean;
            p[k] = before - mean * rate;
        }
    }
    return 0;
}

#include "columns_of_type.h"
#include "logsumexp_of_type.h"
#include "sampling_of_type.h"
#include "systems_of_type.h"

/* ---------------------------------------------------------------- memory that processes share */

/* Arrays: what is copied, and where to, which another core has read. */
KERNEL(send)
{
    UNUSED;
    copy_past_caches(data[1], data[0], dims[0] * (word)sizeof(REAL));
    return 0;
}
