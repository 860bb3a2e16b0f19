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

INLINE REAL OF_TYPE(exp_of)(REAL x)
{
    x = x < LOWEST ? LOWEST : x;
    return OF_TYPE(exp_within)(x > HIGHEST ? HIGHEST : x, 0);
}

/* The sums of x, and of products of x and y, over n numbers. */
INLINE double OF_TYPE(added)(REAL *lanes)
{
    for (int width = LANES / 2; width; width /= 2)
        for (int l = 0; l < width; l++)
            lanes[l] += lanes[l + width];
    return lanes[0];
}

INLINE double OF_TYPE(sum)(const REAL *x, word n)
{
    double total = 0;
    for (word start = 0; start < n; start += STRIP) {
        const word end = n - start < STRIP ? n : start + STRIP;
        REAL lanes[LANES] = {0};
        word k = start;
        for (; k + LANES <= end; k += LANES)
            for (int l = 0; l < LANES; l++)
                lanes[l] += x[k + l];
        for (int l = 0; k < end; k++, l++)
            lanes[l] += x[k];
        total += OF_TYPE(added)(lanes);
    }
    return total;
}

INLINE double OF_TYPE(dot)(const REAL *x, const REAL *y, word n)
{
    double total = 0;
    for (word start = 0; start < n; start += STRIP) {
        const word end = n - start < STRIP ? n : start + STRIP;
        REAL lanes[LANES] = {0};
        word k = start;
        for (; k + LANES <= end; k += LANES)
            for (int l = 0; l < LANES; l++)
                lanes[l] += x[k + l] * y[k + l];
        for (int l = 0; k < end; k++, l++)
            lanes[l] += x[k] * y[k];
        total += OF_TYPE(added)(lanes);
    }
    return total;
}

/* The largest of n numbers; where one is NaN, any of them. */
INLINE REAL OF_TYPE(largest)(const REAL *x, word n)
{
    REAL lanes[LANES];
    for (int l = 0; l < LANES; l++)
        lanes[l] = x[0];
    word k = 0;
    for (; k + LANES <= n; k += LANES)
        for (int l = 0; l < LANES; l++)
            lanes[l] = x[k + l] > lanes[l] ? x[k + l] : lanes[l];
    for (int l = 0; k < n; k++, l++)
        lanes[l] = x[k] > lanes[l] ? x[k] : lanes[l];
    for (int width = LANES / 2; width; width /= 2)
        for (int l = 0; l < width; l++)
            lanes[l] = lanes[l + width] > lanes[l] ? lanes[l + width] : lanes[l];
    return lanes[0];
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
