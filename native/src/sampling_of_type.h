/* Sampling at positions, and resizing, for one type: kernels_of_type.h includes this. What the modes compute stands in
 * gradmgr/nn/_functions/grid_sampling.py and resampling.py; results are the same bits as theirs. */

/* ---------------------------------------------------------------- sampling at positions */

/* For some positions and each tap along one axis: the number of an element, its weight, and the derivative of that.
 * Elements outside have the weight 0, and the number of the nearest element. */
typedef struct {
    ORDERED index[4][POSITIONS];
    REAL weight[4][POSITIONS], slope[4][POSITIONS];
} OF_TYPE(taps_of_axis);

/* The same for the taps of all axes, each at the taps of all positions before the next: the weights are products, and
 * there is a derivative for each axis. */
typedef struct {
    ORDERED index[TAPS];
    REAL weight[TAPS], slope[3][TAPS];
} OF_TYPE(taps);

/* Write where positions outside of an axis with this last number lie within it, and the derivative of that. */
FOR_EACH_PROCESSOR static void OF_TYPE(move_inside)(REAL *RESTRICT places, REAL *RESTRICT slopes, word count, REAL last,
                                                    int padding, int corners)
{
    const REAL low = corners ? 0 : (REAL)-0.5, span = corners ? last : last + 1;
    if (padding == REFLECTION && span == 0)
        for (word k = 0; k < count; k++)
            places[k] = slopes[k] = 0;
    else if (padding == REFLECTION)
        for (word k = 0; k < count; k++) {
            const REAL way = places[k] - low, distance = way < 0 ? -way : way, times = FLOOR(distance / span);
            const REAL odd = times - 2 * FLOOR(times * (REAL)0.5), direction = 1 - 2 * odd, whole = times * span;
            const REAL start = odd == 0 ? low - whole : low + span + whole;
            const REAL place = distance * direction + start, sign = way > 0 ? direction : way < 0 ? -direction : 0;
            slopes[k] = place >= 0 && place <= last ? sign : 0;
            places[k] = place < 0 ? 0 : place > last ? last : place;
        }
    else if (padding == BORDER)
        for (word k = 0; k < count; k++) {
            const REAL place = places[k];
            slopes[k] = place >= 0 && place <= last ? (REAL)1 : 0;
            places[k] = place < 0 ? 0 : place > last ? last : place;
        }
    else
        for (word k = 0; k < count; k++)
            slopes[k] = 1;
}

/* The number of the element at a whole position, or of the nearest one. */
INLINE ORDERED OF_TYPE(element_at)(REAL at, REAL last)
{
    return (ORDERED)(at >= 0 ? at <= last ? at : last : 0);
}

/* Keys' kernel at distances below 1 and from 1 to 2, and its derivatives. */
#define CUBIC (REAL)-0.75
INLINE REAL OF_TYPE(near)(REAL d) { return ((CUBIC + 2) * d - (CUBIC + 3)) * d * d + 1; }
INLINE REAL OF_TYPE(far)(REAL d) { return ((CUBIC * d - 5 * CUBIC) * d + 8 * CUBIC) * d - 4 * CUBIC; }
INLINE REAL OF_TYPE(near_slope)(REAL d) { return (3 * (CUBIC + 2) * d - 2 * (CUBIC + 3)) * d; }
INLINE REAL OF_TYPE(far_slope)(REAL d) { return (3 * CUBIC * d - 10 * CUBIC) * d + 8 * CUBIC; }
#undef CUBIC

/* The weights of linear interpolation between an element and the next one. */
INLINE void OF_TYPE(find_two_taps)(const REAL *RESTRICT places, const REAL *RESTRICT slopes, word count, REAL last,
                                   REAL scale, REAL outside, int with_slopes, OF_TYPE(taps_of_axis) *RESTRICT made)
{
    for (word k = 0; k < count; k++) {
        const REAL below = FLOOR(places[k]), above = below + 1, t = places[k] - below;
        made->index[0][k] = OF_TYPE(element_at)(below, last);
        made->index[1][k] = OF_TYPE(element_at)(above, last);
        made->weight[0][k] = (1 - t) * (below >= 0 && below <= last ? 1 : outside);
        made->weight[1][k] = t * (above >= 0 && above <= last ? 1 : outside);
    }
    for (word k = 0; with_slopes && k < count; k++) {
        const REAL below = FLOOR(places[k]), above = below + 1, slope = slopes[k] * scale;
        made->slope[0][k] = -slope * (below >= 0 && below <= last ? 1 : outside);
        made->slope[1][k] = slope * (above >= 0 && above <= last ? 1 : outside);
    }
}

/* One tap of cubic interpolation, of four; the positions of the elements are moved inside, one by one. */
INLINE void OF_TYPE(find_cubic_tap)(const REAL *RESTRICT places, word count, REAL last, REAL scale, REAL outside,
                                    int padding, int corners, int with_slopes, int tap,
                                    OF_TYPE(taps_of_axis) *RESTRICT made)
{
    const int is_near = tap == 1 || tap == 2;
    ALIGNED REAL at[POSITIONS], none[POSITIONS];
    for (word k = 0; k < count; k++)
        at[k] = FLOOR(places[k]) + (REAL)(tap - 1);
    if (padding != ZEROS)
        OF_TYPE(move_inside)(at, none, count, last, padding, corners);
    for (word k = 0; k < count; k++) {
        const REAL t = places[k] - FLOOR(places[k]), d = tap == 0 ? t + 1 : tap == 1 ? t : tap == 2 ? 1 - t : 2 - t;
        const REAL place = RINT(at[k]), present = place >= 0 && place <= last ? 1 : outside;
        made->index[tap][k] = OF_TYPE(element_at)(place, last);
        made->weight[tap][k] = (is_near ? OF_TYPE(near)(d) : OF_TYPE(far)(d)) * present;
    }
    for (word k = 0; with_slopes && k < count; k++) {
        const REAL t = places[k] - FLOOR(places[k]), d = tap == 0 ? t + 1 : tap == 1 ? t : tap == 2 ? 1 - t : 2 - t;
        const REAL place = RINT(at[k]), present = place >= 0 && place <= last ? 1 : outside;
        const REAL slope = is_near ? OF_TYPE(near_slope)(d) : OF_TYPE(far_slope)(d);
        made->slope[tap][k] = (tap < 2 ? slope : -slope) * scale * present;
    }
}

/* Find the taps of positions, of which each is `axes` numbers after the one before, along an axis of n numbers: 1 for
 * the nearest, 2 for linear and 4 for cubic interpolation. */
FOR_EACH_PROCESSOR static void OF_TYPE(find_taps_of_axis)(const REAL *RESTRICT grid, word axes, word count, word n,
                                                          int taps, int padding, int corners, int with_slopes,
                                                          OF_TYPE(taps_of_axis) *RESTRICT made)
{
    const REAL last = (REAL)(n - 1), scale = (REAL)((double)(corners ? n - 1 : n) / 2), half = (REAL)0.5;
    const REAL times = corners ? scale : (REAL)n, less = corners ? 0 : 1, by = corners ? 1 : half;
    const REAL outside = padding == ZEROS ? 0 : 1;
    ALIGNED REAL places[POSITIONS], slopes[POSITIONS];
    if (axes == 2)
        for (word k = 0; k < count; k++)
            places[k] = ((grid[2 * k] + 1) * times - less) * by;
    else
        for (word k = 0; k < count; k++)
            places[k] = ((grid[3 * k] + 1) * times - less) * by;
    if (taps == 4) {
        OF_TYPE(find_cubic_tap)(places, count, last, scale, outside, padding, corners, with_slopes, 0, made);
        OF_TYPE(find_cubic_tap)(places, count, last, scale, outside, padding, corners, with_slopes, 1, made);
        OF_TYPE(find_cubic_tap)(places, count, last, scale, outside, padding, corners, with_slopes, 2, made);
        OF_TYPE(find_cubic_tap)(places, count, last, scale, outside, padding, corners, with_slopes, 3, made);
        return;
    }
    OF_TYPE(move_inside)(places, slopes, count, last, padding, corners);
    if (taps == 2)
        OF_TYPE(find_two_taps)(places, slopes, count, last, scale, outside, with_slopes, made);
    else
        for (word k = 0; k < count; k++) {
            const REAL place = RINT(places[k]);
            made->index[0][k] = OF_TYPE(element_at)(place, last);
            made->weight[0][k] = place >= 0 && place <= last ? 1 : outside;
        }
}

/* Find the taps of `count` positions in all axes, with either weights or slopes; lengths and numbers are those of
 * `grid_sample`. */
FOR_EACH_PROCESSOR static void OF_TYPE(find_taps)(const REAL *grid, word count, const word *dims, const double *numbers,
                                                  int with_slopes, OF_TYPE(taps) *RESTRICT made)
{
    ALIGNED OF_TYPE(taps_of_axis) of[3];
    const int axes = (int)numbers[0], taps = (int)numbers[1], all = (axes == 3 ? taps : 1) * taps * taps;
    const ORDERED width = (ORDERED)dims[4], area = (ORDERED)(dims[3] * dims[4]);
    for (int axis = 0; axis < axes; axis++)
        OF_TYPE(find_taps_of_axis)(grid + axes - 1 - axis, axes, count, dims[5 - axes + axis], taps, (int)numbers[2],
                                   (int)numbers[3], with_slopes, of + axis);
    for (int tap = 0; tap < all; tap++) {
        const int x = tap % taps, y = tap / taps % taps, z = tap / taps / taps;
        const OF_TYPE(taps_of_axis) *right = of + axes - 1, *down = of + axes - 2;
        ORDERED *RESTRICT index = made->index + tap * count;
        REAL *RESTRICT weight = made->weight + tap * count, *RESTRICT first = made->slope[0] + tap * count;
        REAL *RESTRICT second = made->slope[1] + tap * count, *RESTRICT third = made->slope[2] + tap * count;
        for (word k = 0; axes == 2 && k < count; k++)
            index[k] = down->index[y][k] * width + right->index[x][k];
        for (word k = 0; axes == 2 && !with_slopes && k < count; k++)
            weight[k] = down->weight[y][k] * right->weight[x][k];
        for (word k = 0; axes == 2 && with_slopes && k < count; k++) {
            first[k] = down->slope[y][k] * right->weight[x][k];
            second[k] = down->weight[y][k] * right->slope[x][k];
        }
        for (word k = 0; axes == 3 && k < count; k++)
            index[k] = of->index[z][k] * area + down->index[y][k] * width + right->index[x][k];
        for (word k = 0; axes == 3 && !with_slopes && k < count; k++)
            weight[k] = of->weight[z][k] * down->weight[y][k] * right->weight[x][k];
        for (word k = 0; axes == 3 && with_slopes && k < count; k++) {
            first[k] = of->slope[z][k] * down->weight[y][k] * right->weight[x][k];
            second[k] = of->weight[z][k] * down->slope[y][k] * right->weight[x][k];
            third[k] = of->weight[z][k] * down->weight[y][k] * right->slope[x][k];
        }
    }
}

/* How many taps there are, and how many positions to sample at a time. Channel after channel is read at these: with few
 * positions, lines of many channels would push each other out of the cache. */
INLINE word OF_TYPE(count_of_taps)(const double *numbers, word *positions)
{
    const word taps = (word)numbers[1], all = (numbers[0] == 3 ? taps : 1) * taps * taps;
    *positions = TAPS / all < POSITIONS ? TAPS / all : POSITIONS;
    return all;
}

/* Add four taps to sums of numbers times weights; the first ones begin the sums. */
INLINE void OF_TYPE(add_four_taps)(const REAL *RESTRICT x, const ORDERED *RESTRICT index, const REAL *RESTRICT weight,
                                   word count, int is_first, REAL *RESTRICT out)
{
    const ORDERED *a = index, *b = a + count, *c = b + count, *d = c + count;
    const REAL *u = weight, *v = u + count, *w = v + count, *z = w + count;
    if (is_first)
        for (word k = 0; k < count; k++)
            out[k] = x[a[k]] * u[k] + x[b[k]] * v[k] + x[c[k]] * w[k] + x[d[k]] * z[k];
    else
        for (word k = 0; k < count; k++)
            out[k] = out[k] + x[a[k]] * u[k] + x[b[k]] * v[k] + x[c[k]] * w[k] + x[d[k]] * z[k];
}

/* Arrays: images, positions, numbers at these. Lengths: images, channels, depth (1 of planes), height, width, positions.
 * Numbers: axes, taps along each, what is outside, whether -1 and 1 are centres of numbers. */
KERNEL(grid_sample)
{
    const double *numbers = (const double *)context;
    const word channels = dims[1], size = dims[2] * dims[3] * dims[4], n = dims[5], axes = (word)numbers[0];
    word most;
    const word all = OF_TYPE(count_of_taps)(numbers, &most);
    ALIGNED OF_TYPE(taps) taps;
    UNUSED;
    for (word image = 0; image < dims[0]; image++)
        for (word start = 0; start < n; start += most) {
            const word count = n - start < most ? n - start : most;
            OF_TYPE(find_taps)((const REAL *)data[1] + (image * n + start) * axes, count, dims, numbers, 0, &taps);
            for (word c = image * channels; c < (image + 1) * channels; c++) {
                const REAL *RESTRICT x = (const REAL *)data[0] + c * size;
                ALIGNED REAL out[POSITIONS]; /* as reads wait for writes whose addresses are the same in their last 12 bits */
                for (word k = 0; all == 1 && k < count; k++)
                    out[k] = x[taps.index[k]] * taps.weight[k];
                for (word t = 0; t + 4 <= all; t += 4)
                    OF_TYPE(add_four_taps)(x, taps.index + t * count, taps.weight + t * count, count, t == 0, out);
                memcpy((REAL *)data[2] + c * n + start, out, count * sizeof(REAL));
            }
        }
    return 0;
}

/* Add, for each axis, the derivatives of the numbers of one channel times their cotangents. */
INLINE void OF_TYPE(add_slopes)(const REAL *RESTRICT x, const REAL *RESTRICT g, const OF_TYPE(taps) *RESTRICT taps,
                                word all, word axes, word count, REAL sums[3][POSITIONS])
{
    for (word t = 0; t + 4 <= all; t += 4) {
        const word at = t * count;
        const ORDERED *a = taps->index + at, *b = a + count, *c = b + count, *d = c + count;
        const REAL *down = taps->slope[0] + at, *right = taps->slope[1] + at, *last = taps->slope[2] + at;
        for (word k = 0; k < count; k++) {
            const REAL p = x[a[k]], q = x[b[k]], r = x[c[k]], s = x[d[k]];
            sums[0][k] += (p * down[k] + q * down[k + count] + r * down[k + 2 * count] + s * down[k + 3 * count]) * g[k];
            sums[1][k] +=
                (p * right[k] + q * right[k + count] + r * right[k + 2 * count] + s * right[k + 3 * count]) * g[k];
        }
        for (word k = 0; axes == 3 && k < count; k++)
            sums[2][k] += (x[a[k]] * last[k] + x[b[k]] * last[k + count] + x[c[k]] * last[k + 2 * count] +
                           x[d[k]] * last[k + 3 * count]) * g[k];
    }
}

/* Arrays: cotangents of the numbers, images, positions, cotangents of the positions. Lengths and numbers: as above. */
KERNEL(grid_slopes)
{
    const double *numbers = (const double *)context;
    const word channels = dims[1], size = dims[2] * dims[3] * dims[4], n = dims[5], axes = (word)numbers[0];
    word most;
    const word all = OF_TYPE(count_of_taps)(numbers, &most);
    ALIGNED OF_TYPE(taps) taps;
    UNUSED;
    for (word image = 0; image < dims[0]; image++)
        for (word start = 0; start < n; start += most) {
            const word count = n - start < most ? n - start : most, from = (image * n + start) * axes;
            ALIGNED REAL sums[3][POSITIONS] = {{0}};
            OF_TYPE(find_taps)((const REAL *)data[2] + from, count, dims, numbers, 1, &taps);
            for (word c = image * channels; c < (image + 1) * channels; c++)
                OF_TYPE(add_slopes)((const REAL *)data[1] + c * size, (const REAL *)data[0] + c * n + start, &taps, all,
                                    axes, count, sums);
            for (word axis = 0; axis < axes; axis++)
                for (word k = 0; k < count; k++)
                    ((REAL *)data[3])[from + k * axes + axes - 1 - axis] = sums[axis][k];
        }
    return 0;
}

/* Arrays: cotangents of the numbers, positions, cotangents of the images. Lengths and numbers: as above. */
KERNEL(grid_spread)
{
    const double *numbers = (const double *)context;
    const word channels = dims[1], size = dims[2] * dims[3] * dims[4], n = dims[5], axes = (word)numbers[0];
    word most;
    const word all = OF_TYPE(count_of_taps)(numbers, &most);
    ALIGNED OF_TYPE(taps) taps;
    UNUSED;
    memset(data[2], 0, dims[0] * channels * size * sizeof(REAL));
    for (word image = 0; image < dims[0]; image++)
        for (word start = 0; start < n; start += most) {
            const word count = n - start < most ? n - start : most;
            OF_TYPE(find_taps)((const REAL *)data[1] + (image * n + start) * axes, count, dims, numbers, 0, &taps);
            for (word c = image * channels; c < (image + 1) * channels; c++)
                for (word t = 0; t < all; t++) {
                    const REAL *RESTRICT g = (const REAL *)data[0] + c * n + start, *weight = taps.weight + t * count;
                    const ORDERED *index = taps.index + t * count;
                    ALIGNED REAL shares[POSITIONS], *to = (REAL *)data[2] + c * size;
                    for (word k = 0; k < count; k++)
                        shares[k] = g[k] * weight[k];
                    for (word k = 0; k < count; k++)
                        to[index[k]] += shares[k];
                }
        }
    return 0;
}

/* ---------------------------------------------------------------- resizing */

/* Write a row as sums of others, times the weights of taps. */
INLINE void OF_TYPE(combine_rows)(const REAL *x, word n, const ORDERED *places, const REAL *weights, word taps,
                                  word step, REAL *RESTRICT out)
{
    for (word t = 0; t < taps; t += 2) {
        const REAL *one = x + places[t * step] * n, weight = weights[t * step];
        if (t + 1 == taps) {
            for (word k = 0; k < n; k++)
                out[k] = (t ? out[k] : 0) + one[k] * weight;
            continue;
        }
        const REAL *two = x + places[(t + 1) * step] * n, other = weights[(t + 1) * step];
        if (t == 0)
            for (word k = 0; k < n; k++)
                out[k] = one[k] * weight + two[k] * other;
        else
            for (word k = 0; k < n; k++)
                out[k] = out[k] + one[k] * weight + two[k] * other;
    }
}

/* The same along a row: n numbers, each a sum over taps. */
INLINE void OF_TYPE(combine_columns)(const REAL *RESTRICT x, word n, const ORDERED *RESTRICT places,
                                     const REAL *RESTRICT weights, word taps, REAL *RESTRICT out)
{
    for (word t = 0; t < taps; t += 2) {
        const ORDERED *one = places + t * n, *two = one + n;
        const REAL *weight = weights + t * n, *other = weight + n;
        if (t + 1 == taps)
            for (word k = 0; k < n; k++)
                out[k] = x[one[k]] * weight[k];
        else if (t == 0)
            for (word k = 0; k < n; k++)
                out[k] = x[one[k]] * weight[k] + x[two[k]] * other[k];
        else
            for (word k = 0; k < n; k++)
                out[k] = out[k] + x[one[k]] * weight[k] + x[two[k]] * other[k];
    }
}

/* Tell whether two rows of a result are the same sums. */
INLINE int OF_TYPE(are_alike)(const ORDERED *places, const REAL *weights, word taps, word step)
{
    for (word t = 0; t < taps; t++)
        if (places[t * step] != places[t * step + 1] || weights[t * step] != weights[t * step + 1])
            return 0;
    return taps > 0;
}

/* Arrays: planes; for each tap and row its place (int32 or int64, as long as the numbers) and weight; the same of
 * columns; scratch of a row; resized planes. Lengths: planes, height, width, rows, columns, taps of a row and of a
 * column: 1, 2 or 4, and 0 where that axis stays as it is. */
KERNEL(resize)
{
    const word height = dims[1], width = dims[2], rows = dims[3], columns = dims[4], down = dims[5], right = dims[6];
    const ORDERED *places = (const ORDERED *)data[1];
    const REAL *weights = (const REAL *)data[2];
    UNUSED;
    for (word plane = 0; plane < dims[0]; plane++)
        for (word row = 0; row < rows; row++) {
            const REAL *x = (const REAL *)data[0] + plane * height * width, *line = x + (down ? 0 : row) * width;
            REAL *out = (REAL *)data[6] + (plane * rows + row) * columns, *made = right ? (REAL *)data[5] : out;
            if (row && OF_TYPE(are_alike)(places + row - 1, weights + row - 1, down, rows)) {
                memcpy(out, out - columns, columns * sizeof(REAL));
                continue;
            }
            if (down) {
                OF_TYPE(combine_rows)(x, width, places + row, weights + row, down, rows, made);
                line = made;
            }
            if (right)
                OF_TYPE(combine_columns)(line, columns, (const ORDERED *)data[3], (const REAL *)data[4], right, out);
            else if (!down)
                memcpy(out, line, columns * sizeof(REAL));
        }
    return 0;
}

/* Arrays: cotangents of the resized planes; taps as above; scratch of height times columns; cotangents of the planes.
 * Lengths: as above. */
KERNEL(resize_vjp)
{
    const word height = dims[1], width = dims[2], rows = dims[3], columns = dims[4], down = dims[5], right = dims[6];
    const ORDERED *places = (const ORDERED *)data[1], *across = (const ORDERED *)data[3];
    const REAL *weights = (const REAL *)data[2], *shares = (const REAL *)data[4];
    UNUSED;
    for (word plane = 0; plane < dims[0]; plane++) {
        const REAL *g = (const REAL *)data[0] + plane * rows * columns, *lines = g;
        REAL *to = (REAL *)data[6] + plane * height * width;
        if (down) {
            REAL *sums = right ? (REAL *)data[5] : to;
            memset(sums, 0, height * columns * sizeof(REAL));
            for (word row = 0; row < rows; row++)
                for (word t = 0; t < down; t++) {
                    const REAL weight = weights[t * rows + row], *RESTRICT from = g + row * columns;
                    REAL *RESTRICT sum = sums + places[t * rows + row] * columns;
                    for (word k = 0; k < columns; k++)
                        sum[k] += from[k] * weight;
                }
            lines = sums;
        }
        if (!right) {
            if (!down)
                memcpy(to, g, height * width * sizeof(REAL));
            continue;
        }
        memset(to, 0, height * width * sizeof(REAL));
        for (word row = 0; row < height; row++)
            for (word t = 0; t < right; t++)
                for (word start = 0; start < columns; start += PIECE) {
                    const word count = columns - start < PIECE ? columns - start : PIECE;
                    const REAL *RESTRICT from = lines + row * columns + start, *weight = shares + t * columns + start;
                    const ORDERED *at = across + t * columns + start;
                    REAL parts[PIECE];
                    for (word k = 0; k < count; k++)
                        parts[k] = from[k] * weight[k];
                    for (word k = 0; k < count; k++)
                        to[row * width + at[k]] += parts[k];
                }
    }
    return 0;
}
