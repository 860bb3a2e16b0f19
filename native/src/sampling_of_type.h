/* Sampling at positions, and resizing, for one type: kernels_of_type.h includes this. What the modes compute stands in
 * gradmgr/nn/_functions/grid_sampling.py and resampling.py; results are the same bits as theirs. */

/* ---------------------------------------------------------------- sampling at positions */

/* For some positions and each tap along one axis: the number of an element, its weight, and the derivative of that.
 * Elements outside have the weight 0, and the number of the nearest element. */
typedef struct {
    ORDERED index[4][POSITIONS];
    REAL weight[4][POSITIONS], slope[4][POSITIONS];
} OF_TYPE(taps_of_axis);

/* The taps of some positions, in rows of up to four along the last axis. As "index" a row has the number of the element
 * where it begins, and a column that of an element in the row. In volumes `deep` is the derivative of a row's weight
 * along the first axis, as `row.slope` is that along the second. `at` are the numbers of all taps, row by row; where
 * rows have four, those of the first tap of each row where the others lie side by side with it, as they do inside of the
 * image, else -1. */
typedef struct {
    OF_TYPE(taps_of_axis) row, column;
    REAL deep[4][POSITIONS];
    ORDERED at[8][POSITIONS];
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
            slopes[k] = place > 0 && place < last ? sign : 0;
            places[k] = place < 0 ? 0 : place > last ? last : place;
        }
    else if (padding == BORDER)
        for (word k = 0; k < count; k++) {
            const REAL place = places[k];
            slopes[k] = place > 0 && place < last ? (REAL)1 : 0;
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
    if (padding != ZEROS || with_slopes)
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

/* Make, of the taps along the first two axes of volumes, rows of taps: two of the second axis for each of the first. */
INLINE void OF_TYPE(join_axes)(const OF_TYPE(taps_of_axis) *RESTRICT first, word count, int taps, ORDERED height,
                               int with_slopes, OF_TYPE(taps) *RESTRICT made)
{
    OF_TYPE(taps_of_axis) *row = &made->row;
    for (int r = taps * taps - 1; r >= 0; r--) { /* from the last: what is read was not written over yet */
        const int y = r % taps, z = r / taps;
        for (word k = 0; with_slopes && k < count; k++) {
            made->deep[r][k] = first->slope[z][k] * row->weight[y][k];
            row->slope[r][k] = first->weight[z][k] * row->slope[y][k];
        }
        for (word k = 0; k < count; k++) {
            row->index[r][k] = first->index[z][k] * height + row->index[y][k];
            row->weight[r][k] = first->weight[z][k] * row->weight[y][k];
        }
    }
}

/* The nearest elements of positions in planes with zeros outside, of both axes at once; `row.weight` is 1 inside. */
FOR_EACH_PROCESSOR static void OF_TYPE(find_nearest)(const REAL *RESTRICT grid, word count, const word *dims,
                                                     int corners, OF_TYPE(taps) *RESTRICT made)
{
    const REAL right = (REAL)(dims[4] - 1), bottom = (REAL)(dims[3] - 1), half = (REAL)0.5, less = corners ? 0 : 1;
    const REAL across = corners ? (REAL)((double)(dims[4] - 1) / 2) : (REAL)dims[4], by = corners ? 1 : half;
    const REAL down = corners ? (REAL)((double)(dims[3] - 1) / 2) : (REAL)dims[3];
    const ORDERED width = (ORDERED)dims[4];
    for (word k = 0; k < count; k++) {
        const REAL x = RINT(((grid[2 * k] + 1) * across - less) * by);
        const REAL y = RINT(((grid[2 * k + 1] + 1) * down - less) * by);
        const REAL in_row = x >= 0 && x <= right ? 1 : 0, in_column = y >= 0 && y <= bottom ? 1 : 0;
        made->at[0][k] = OF_TYPE(element_at)(y, bottom) * width + OF_TYPE(element_at)(x, right);
        made->row.weight[0][k] = in_row * in_column;
    }
}

/* The four taps of linear interpolation at positions in planes with zeros outside, of both axes at once: what
 * `find_taps` computes axis by axis, in two thirds of the time. */
FOR_EACH_PROCESSOR static void OF_TYPE(find_fours)(const REAL *RESTRICT grid, word count, const word *dims, int corners,
                                                   int with_slopes, OF_TYPE(taps) *RESTRICT made)
{
    const REAL right = (REAL)(dims[4] - 1), bottom = (REAL)(dims[3] - 1), half = (REAL)0.5, less = corners ? 0 : 1;
    const REAL to_right = (REAL)((double)(corners ? dims[4] - 1 : dims[4]) / 2), by = corners ? 1 : half;
    const REAL to_bottom = (REAL)((double)(corners ? dims[3] - 1 : dims[3]) / 2);
    const REAL across = corners ? to_right : (REAL)dims[4], down = corners ? to_bottom : (REAL)dims[3];
    const ORDERED width = (ORDERED)dims[4];
    for (word k = 0; k < count; k++) {
        const REAL x = ((grid[2 * k] + 1) * across - less) * by, y = ((grid[2 * k + 1] + 1) * down - less) * by;
        const REAL left = FLOOR(x), above = FLOOR(y), t = x - left, u = y - above;
        const REAL has_left = left >= 0 && left <= right ? 1 : 0, has_right = left + 1 >= 0 && left + 1 <= right ? 1 : 0;
        const REAL has_above = above >= 0 && above <= bottom ? 1 : 0;
        const REAL has_below = above + 1 >= 0 && above + 1 <= bottom ? 1 : 0;
        const ORDERED upper = OF_TYPE(element_at)(above, bottom) * width;
        const ORDERED lower = OF_TYPE(element_at)(above + 1, bottom) * width;
        const ORDERED near = OF_TYPE(element_at)(left, right), far = OF_TYPE(element_at)(left + 1, right);
        made->at[0][k] = upper + near;
        made->at[1][k] = upper + far;
        made->at[2][k] = lower + near;
        made->at[3][k] = lower + far;
        made->column.weight[0][k] = (1 - t) * has_left;
        made->column.weight[1][k] = t * has_right;
        made->row.weight[0][k] = (1 - u) * has_above;
        made->row.weight[1][k] = u * has_below;
        if (with_slopes) {
            made->column.slope[0][k] = -to_right * has_left;
            made->column.slope[1][k] = to_right * has_right;
            made->row.slope[0][k] = -to_bottom * has_above;
            made->row.slope[1][k] = to_bottom * has_below;
        }
    }
}

/* Find the taps of `count` positions in all axes; lengths and numbers are those of `grid_sample`. Return how many rows
 * there are. */
FOR_EACH_PROCESSOR static int OF_TYPE(find_taps)(const REAL *grid, word count, const word *dims, const double *numbers,
                                                 int with_slopes, OF_TYPE(taps) *RESTRICT made)
{
    ALIGNED OF_TYPE(taps_of_axis) first;
    const int axes = (int)numbers[0], taps = (int)numbers[1], rows = (axes == 3 ? taps : 1) * taps;
    const ORDERED width = (ORDERED)dims[4], (*column)[POSITIONS] = made->column.index;
    if (axes == 2 && taps == 2 && (int)numbers[2] == ZEROS) {
        OF_TYPE(find_fours)(grid, count, dims, (int)numbers[3], with_slopes, made);
        return rows;
    }
    for (int axis = 0; axis < axes; axis++)
        OF_TYPE(find_taps_of_axis)(grid + axis, axes, count, dims[4 - axis], taps, (int)numbers[2], (int)numbers[3],
                                   with_slopes, axis == 0 ? &made->column : axis == 1 ? &made->row : &first);
    if (axes == 3)
        OF_TYPE(join_axes)(&first, count, taps, (ORDERED)dims[3], with_slopes, made);
    for (int t = 0; taps < 4 && t < rows * taps; t++)
        for (word k = 0; k < count; k++)
            made->at[t][k] = made->row.index[t / taps][k] * width + column[t % taps][k];
    for (int r = 0; taps == 4 && r < rows; r++)
        for (word k = 0; k < count; k++)
            made->row.index[r][k] *= width;
    for (int r = 0; taps == 4 && r < rows; r++)
        for (word k = 0; k < count; k++) {
            const ORDERED at = column[0][k];
            const int is_apart = (column[1][k] ^ (at + 1)) | (column[2][k] ^ (at + 2)) | (column[3][k] ^ (at + 3));
            made->at[r][k] = is_apart ? -1 : made->row.index[r][k] + at;
        }
    return rows;
}

/* Add the numbers of two rows of two taps, times weights, to sums; the first rows begin the sums. */
INLINE void OF_TYPE(add_pairs)(const REAL *RESTRICT x, const OF_TYPE(taps) *RESTRICT taps, int r, word count,
                               REAL *RESTRICT out)
{
    const ORDERED *a = taps->at[2 * r], *b = taps->at[2 * r + 1], *c = taps->at[2 * r + 2], *d = taps->at[2 * r + 3];
    const REAL *up = taps->row.weight[r], *down = taps->row.weight[r + 1];
    const REAL *near = taps->column.weight[0], *far = taps->column.weight[1];
    for (word k = 0; r == 0 && k < count; k++)
        out[k] = x[a[k]] * (up[k] * near[k]) + x[b[k]] * (up[k] * far[k]) + x[c[k]] * (down[k] * near[k]) +
                 x[d[k]] * (down[k] * far[k]);
    for (word k = 0; r != 0 && k < count; k++)
        out[k] = out[k] + x[a[k]] * (up[k] * near[k]) + x[b[k]] * (up[k] * far[k]) + x[c[k]] * (down[k] * near[k]) +
                 x[d[k]] * (down[k] * far[k]);
}

/* Read the numbers of rows of four taps, position after position: in half of the time that each tap of all positions
 * takes, as processors read numbers at an index one at a time. */
INLINE void OF_TYPE(read_fours)(const REAL *RESTRICT x, const OF_TYPE(taps) *RESTRICT taps, int r, word count,
                                REAL *RESTRICT made)
{
    for (word k = 0; k < count; k++)
        if (taps->at[r][k] >= 0)
            memcpy(made + 4 * k, x + taps->at[r][k], 4 * sizeof(REAL));
        else
            for (int tap = 0; tap < 4; tap++)
                made[4 * k + tap] = x[taps->row.index[r][k] + taps->column.index[tap][k]];
}

/* Add the numbers of a row of four taps, times weights, to sums; the first row begins the sums. */
INLINE void OF_TYPE(add_fours)(const REAL *RESTRICT x, const OF_TYPE(taps) *RESTRICT taps, int r, word count,
                               REAL *RESTRICT out)
{
    ALIGNED REAL read[4 * POSITIONS];
    const REAL *down = taps->row.weight[r], *a = taps->column.weight[0], *b = taps->column.weight[1];
    const REAL *c = taps->column.weight[2], *d = taps->column.weight[3];
    OF_TYPE(read_fours)(x, taps, r, count, read);
    for (word k = 0; r == 0 && k < count; k++)
        out[k] = read[4 * k] * (down[k] * a[k]) + read[4 * k + 1] * (down[k] * b[k]) +
                 read[4 * k + 2] * (down[k] * c[k]) + read[4 * k + 3] * (down[k] * d[k]);
    for (word k = 0; r != 0 && k < count; k++)
        out[k] = out[k] + read[4 * k] * (down[k] * a[k]) + read[4 * k + 1] * (down[k] * b[k]) +
                 read[4 * k + 2] * (down[k] * c[k]) + read[4 * k + 3] * (down[k] * d[k]);
}

/* Arrays: images, positions, numbers at these. Lengths: images, channels, depth (1 of planes), height, width, positions.
 * Numbers: axes, taps along each, what is outside, whether -1 and 1 are centres of numbers. */
KERNEL(grid_sample)
{
    const double *numbers = (const double *)context;
    const word channels = dims[1], size = dims[2] * dims[3] * dims[4], n = dims[5], axes = (word)numbers[0];
    const int columns = (int)numbers[1];
    ALIGNED OF_TYPE(taps) taps;
    UNUSED;
    for (word image = 0; image < dims[0]; image++)
        for (word start = 0; start < n; start += POSITIONS) {
            const word count = n - start < POSITIONS ? n - start : POSITIONS;
            const REAL *grid = (const REAL *)data[1] + (image * n + start) * axes;
            const int is_brief = columns == 1 && axes == 2 && numbers[2] == ZEROS;
            const int rows = is_brief ? 1 : OF_TYPE(find_taps)(grid, count, dims, numbers, 0, &taps);
            if (is_brief)
                OF_TYPE(find_nearest)(grid, count, dims, numbers[3] != 0, &taps);
            for (word k = 0; !is_brief && columns == 1 && k < count; k++)
                taps.row.weight[0][k] *= taps.column.weight[0][k];
            for (word c = image * channels; c < (image + 1) * channels; c++) {
                const REAL *RESTRICT x = (const REAL *)data[0] + c * size;
                ALIGNED REAL out[POSITIONS]; /* as reads wait for writes whose addresses have the same last 12 bits */
                for (word k = 0; columns == 1 && k < count; k++)
                    out[k] = x[taps.at[0][k]] * taps.row.weight[0][k];
                for (int r = 0; columns == 2 && r < rows; r += 2)
                    OF_TYPE(add_pairs)(x, &taps, r, count, out);
                for (int r = 0; columns == 4 && r < rows; r++)
                    OF_TYPE(add_fours)(x, &taps, r, count, out);
                memcpy((REAL *)data[2] + c * n + start, out, count * sizeof(REAL));
            }
        }
    return 0;
}

/* Add, for each axis from the last, the derivatives of the numbers of two rows of two taps times their cotangents. */
INLINE void OF_TYPE(derive_pairs)(const REAL *RESTRICT x, const REAL *RESTRICT g, const OF_TYPE(taps) *RESTRICT taps,
                                  int r, int is_deep, word count, REAL sums[RESTRICT 3][POSITIONS])
{
    const ORDERED *a = taps->at[2 * r], *b = taps->at[2 * r + 1], *c = taps->at[2 * r + 2], *d = taps->at[2 * r + 3];
    const REAL(*weight)[POSITIONS] = taps->column.weight, (*slope)[POSITIONS] = taps->column.slope;
    const REAL(*row)[POSITIONS] = taps->row.weight + r, (*turn)[POSITIONS] = taps->row.slope + r;
    const REAL(*deep)[POSITIONS] = taps->deep + r;
    for (word k = 0; k < count; k++) {
        const REAL p = x[a[k]], q = x[b[k]], s = x[c[k]], t = x[d[k]];
        const REAL upper = p * weight[0][k] + q * weight[1][k], lower = s * weight[0][k] + t * weight[1][k];
        const REAL up = p * slope[0][k] + q * slope[1][k], down = s * slope[0][k] + t * slope[1][k];
        sums[0][k] += (up * row[0][k] + down * row[1][k]) * g[k];
        sums[1][k] += (upper * turn[0][k] + lower * turn[1][k]) * g[k];
        if (is_deep)
            sums[2][k] += (upper * deep[0][k] + lower * deep[1][k]) * g[k];
    }
}

/* The same of a row of four taps. */
INLINE void OF_TYPE(derive_fours)(const REAL *RESTRICT x, const REAL *RESTRICT g, const OF_TYPE(taps) *RESTRICT taps,
                                  int r, word count, REAL sums[RESTRICT 3][POSITIONS])
{
    ALIGNED REAL read[4 * POSITIONS];
    const REAL(*weight)[POSITIONS] = taps->column.weight, (*slope)[POSITIONS] = taps->column.slope;
    const REAL *row = taps->row.weight[r], *turn = taps->row.slope[r];
    OF_TYPE(read_fours)(x, taps, r, count, read);
    for (word k = 0; k < count; k++) {
        const REAL p = read[4 * k], q = read[4 * k + 1], s = read[4 * k + 2], t = read[4 * k + 3];
        const REAL sum = p * weight[0][k] + q * weight[1][k] + s * weight[2][k] + t * weight[3][k];
        const REAL derived = p * slope[0][k] + q * slope[1][k] + s * slope[2][k] + t * slope[3][k];
        sums[0][k] += derived * (row[k] * g[k]);
        sums[1][k] += sum * (turn[k] * g[k]);
    }
}

/* Arrays: cotangents of the numbers, images, positions, cotangents of the positions. Lengths and numbers: as above. */
KERNEL(grid_slopes)
{
    const double *numbers = (const double *)context;
    const word channels = dims[1], size = dims[2] * dims[3] * dims[4], n = dims[5], axes = (word)numbers[0];
    const int columns = (int)numbers[1];
    ALIGNED OF_TYPE(taps) taps;
    UNUSED;
    for (word image = 0; image < dims[0]; image++)
        for (word start = 0; start < n; start += POSITIONS) {
            const word count = n - start < POSITIONS ? n - start : POSITIONS, from = (image * n + start) * axes;
            ALIGNED REAL sums[3][POSITIONS] = {{0}};
            const int rows = OF_TYPE(find_taps)((const REAL *)data[2] + from, count, dims, numbers, 1, &taps);
            for (word c = image * channels; c < (image + 1) * channels; c++) {
                const REAL *x = (const REAL *)data[1] + c * size, *g = (const REAL *)data[0] + c * n + start;
                if (columns == 2 && axes == 2)
                    OF_TYPE(derive_pairs)(x, g, &taps, 0, 0, count, sums);
                for (int r = 0; columns == 2 && axes == 3 && r < rows; r += 2)
                    OF_TYPE(derive_pairs)(x, g, &taps, r, 1, count, sums);
                for (int r = 0; columns == 4 && r < rows; r++)
                    OF_TYPE(derive_fours)(x, g, &taps, r, count, sums);
            }
            for (word axis = 0; axis < axes; axis++)
                for (word k = 0; k < count; k++)
                    ((REAL *)data[3])[from + k * axes + axis] = sums[axis][k];
        }
    return 0;
}

/* Arrays: cotangents of the numbers, positions, cotangents of the images. Lengths and numbers: as above. */
KERNEL(grid_spread)
{
    const double *numbers = (const double *)context;
    const word channels = dims[1], size = dims[2] * dims[3] * dims[4], n = dims[5], axes = (word)numbers[0];
    const int columns = (int)numbers[1];
    ALIGNED OF_TYPE(taps) taps;
    ALIGNED ORDERED index[POSITIONS];
    UNUSED;
    memset(data[2], 0, dims[0] * channels * size * sizeof(REAL));
    for (word image = 0; image < dims[0]; image++)
        for (word start = 0; start < n; start += POSITIONS) {
            const word count = n - start < POSITIONS ? n - start : POSITIONS;
            const int rows = OF_TYPE(find_taps)((const REAL *)data[1] + (image * n + start) * axes, count, dims, numbers,
                                                0, &taps);
            for (word c = image * channels; c < (image + 1) * channels; c++)
                for (int t = 0; t < rows * columns; t++) {
                    const REAL *RESTRICT g = (const REAL *)data[0] + c * n + start;
                    const REAL *down = taps.row.weight[t / columns], *right = taps.column.weight[t % columns];
                    const ORDERED *row = taps.row.index[t / columns], *column = taps.column.index[t % columns];
                    const ORDERED *at = columns == 4 ? index : taps.at[t];
                    ALIGNED REAL shares[POSITIONS], *to = (REAL *)data[2] + c * size;
                    for (word k = 0; columns == 4 && k < count; k++)
                        index[k] = row[k] + column[k];
                    for (word k = 0; k < count; k++)
                        shares[k] = g[k] * (down[k] * right[k]);
                    for (word k = 0; k < count; k++)
                        to[at[k]] += shares[k];
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
