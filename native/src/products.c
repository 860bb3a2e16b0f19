/* Products of matrices in float32 by AVX-512: of small ones, in stacks too, and of those whose second factor lies by
 * columns. gradmgr/_arrays/products.py chooses; for large ones BLAS and oneDNN, which place blocks of both factors in
 * the order of reading, are faster.
 *
 * A tile of the product, of up to 14 rows and 32 columns, stays in registers while all of k passes: 28 sums, 2 vectors
 * of the second factor, and one element of the first at a time, which is read where it lies. The second factor is read
 * where it lies, too, or, if its columns are contiguous, from a panel of 32 columns that is transposed first. Rows are
 * dealt out evenly, since a tile of 2 rows takes as long as one of 4. The order of additions depends on shapes alone.
 */
#include <stdint.h>

#if defined(__GNUC__) && defined(__x86_64__)
#include <immintrin.h>

typedef int64_t word;

enum { ROWS = 14, LANES = 16, WIDTH = 2 * LANES, DEPTH = 256 };

#define AVX512 __attribute__((target("avx512f")))
#define LOOP_HEAD(name)                                              \
    __attribute__((visibility("default"))) AVX512 int gradmgr_##name( \
        void *context, char *const *data, const word *dims, const word *strides, void *auxdata)
#define INLINE static inline __attribute__((always_inline)) AVX512

/* A tile: where its rows of the first factor, its columns of the second and its part of the product are, and by how many
 * elements one moves from row to row (a, c), along k (a, b) and to the second vector of columns (b).
 */
typedef struct {
    const float *a, *b;
    float *c;
    word a_row, a_deep, b_deep, b_right, c_row, depth;
    __mmask16 last; /* of the lanes of the last vector that there are */
    int adds;       /* to what the target holds */
} tile;

#define EACH_ROW(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7) DO(8) DO(9) DO(10) DO(11) DO(12) DO(13)

/* `rows` and `vectors` are constants where this is called, so that what is not needed goes, and sums are registers. */
INLINE void compute(const tile *t, const int rows, const int vectors)
{
    __m512 left[ROWS], right[ROWS];
    const float *a = t->a, *b = t->b;
    const word a_row = t->a_row, a_deep = t->a_deep, b_deep = t->b_deep, b_right = t->b_right;
    const __mmask16 last = t->last, first = vectors > 1 ? (__mmask16)0xffff : last;
#define CLEAR(i)                              \
    if (i < rows)                             \
        left[i] = right[i] = _mm512_setzero_ps();
    EACH_ROW(CLEAR)
    for (word p = 0; p < t->depth; p++, a += a_deep, b += b_deep) {
        const __m512 one = _mm512_maskz_loadu_ps(first, b);
        const __m512 other = vectors > 1 ? _mm512_maskz_loadu_ps(last, b + b_right) : one;
#define ADD(i)                                                                    \
    if (i < rows) {                                                               \
        const __m512 x = _mm512_set1_ps(a[i * a_row]);                            \
        left[i] = _mm512_fmadd_ps(x, one, left[i]);                               \
        if (vectors > 1)                                                          \
            right[i] = _mm512_fmadd_ps(x, other, right[i]);                       \
    }
        EACH_ROW(ADD)
    }
    float *c = t->c;
#define STORE(i)                                                                                     \
    if (i < rows) {                                                                                  \
        if (t->adds) {                                                                               \
            left[i] = _mm512_add_ps(_mm512_maskz_loadu_ps(first, c), left[i]);                       \
            if (vectors > 1)                                                                         \
                right[i] = _mm512_add_ps(_mm512_maskz_loadu_ps(last, c + LANES), right[i]);          \
        }                                                                                            \
        _mm512_mask_storeu_ps(c, first, left[i]);                                                    \
        if (vectors > 1)                                                                             \
            _mm512_mask_storeu_ps(c + LANES, last, right[i]);                                        \
        c += t->c_row;                                                                               \
    }
    EACH_ROW(STORE)
}

static AVX512 void compute_tile(const tile *t, int rows, int vectors)
{
#define CASE(i)                     \
    case i + 1:                     \
        if (vectors > 1)            \
            compute(t, i + 1, 2);   \
        else                        \
            compute(t, i + 1, 1);   \
        break;
    switch (rows) {
        EACH_ROW(CASE)
    }
}

/* Write up to 16 rows, of as many elements as the mask has bits, as columns, which are `pitch` elements apart and have
 * those lanes that are written. In 16 vectors elements change places, then pairs, then quarters of vectors, twice. */
INLINE void transpose(const float *from, word row, word rows, __mmask16 mask, float *to, word pitch, __mmask16 written)
{
    __m512 x[LANES], y[LANES];
#define EACH_LANE(DO) EACH_ROW(DO) DO(14) DO(15)
#define EACH_HALF(DO) DO(0) DO(1) DO(2) DO(3) DO(4) DO(5) DO(6) DO(7)
#define EACH_QUARTER(DO) DO(0) DO(1) DO(2) DO(3)
#define LOAD(i) x[i] = i < rows ? _mm512_maskz_loadu_ps(mask, from + i * row) : _mm512_setzero_ps();
#define BY_ONE(i)                                               \
    y[2 * i] = _mm512_unpacklo_ps(x[2 * i], x[2 * i + 1]);      \
    y[2 * i + 1] = _mm512_unpackhi_ps(x[2 * i], x[2 * i + 1]);
#define AS_PAIRS(v) _mm512_castps_pd(v)
#define LOW_PAIRS(v, w) _mm512_castpd_ps(_mm512_unpacklo_pd(AS_PAIRS(v), AS_PAIRS(w)))
#define HIGH_PAIRS(v, w) _mm512_castpd_ps(_mm512_unpackhi_pd(AS_PAIRS(v), AS_PAIRS(w)))
#define BY_TWO(i)                                               \
    x[4 * i] = LOW_PAIRS(y[4 * i], y[4 * i + 2]);               \
    x[4 * i + 1] = HIGH_PAIRS(y[4 * i], y[4 * i + 2]);          \
    x[4 * i + 2] = LOW_PAIRS(y[4 * i + 1], y[4 * i + 3]);       \
    x[4 * i + 3] = HIGH_PAIRS(y[4 * i + 1], y[4 * i + 3]);
#define BY_FOUR(i)                                                          \
    y[i] = _mm512_shuffle_f32x4(x[i], x[4 + i], 0x88);                      \
    y[4 + i] = _mm512_shuffle_f32x4(x[i], x[4 + i], 0xdd);                  \
    y[8 + i] = _mm512_shuffle_f32x4(x[8 + i], x[12 + i], 0x88);             \
    y[12 + i] = _mm512_shuffle_f32x4(x[8 + i], x[12 + i], 0xdd);
#define BY_EIGHT(i)                                                         \
    x[i] = _mm512_shuffle_f32x4(y[i], y[8 + i], 0x88);                      \
    x[8 + i] = _mm512_shuffle_f32x4(y[i], y[8 + i], 0xdd);
#define WRITE(i)                                                            \
    if (mask >> i & 1)                                                      \
        _mm512_mask_storeu_ps(to + i * pitch, written, x[i]);
    EACH_LANE(LOAD)
    EACH_HALF(BY_ONE)
    EACH_QUARTER(BY_TWO)
    EACH_QUARTER(BY_FOUR)
    EACH_HALF(BY_EIGHT)
    EACH_LANE(WRITE)
}

static inline __mmask16 lanes(word count) { return count < LANES ? (__mmask16)((1u << count) - 1) : 0xffff; }

/* Transpose up to 16 contiguous columns of the second factor; of columns that there are not, write zeros. */
static AVX512 void fill_panel(const float *b, word b_column, word columns, word depth, float *panel)
{
    word p = 0;
    if (columns >= LANES) /* with constants for what there is, for no branches */
        for (; p + LANES <= depth; p += LANES)
            transpose(b + p, b_column, LANES, 0xffff, panel + p * LANES, LANES, 0xffff);
    for (; p < depth; p += LANES)
        transpose(b + p, b_column, columns, lanes(depth - p), panel + p * LANES, LANES, 0xffff);
}

/* One product, of which `n` rows are computed from `depth` elements of k, for all columns. */
static AVX512 void multiply(tile t, word n, word m, word b_column)
{
    float panel[WIDTH * DEPTH] __attribute__((aligned(64)));
    const word tiles = (n + ROWS - 1) / ROWS, b_deep = t.b_deep;
    const float *a = t.a, *b = t.b;
    float *c = t.c;
    for (word j = 0; j < m; j += WIDTH) {
        const word here = m - j < WIDTH ? m - j : WIDTH;
        const int vectors = here > LANES ? 2 : 1;
        t.last = lanes(here - LANES * (vectors - 1));
        t.b = b + j * b_column, t.b_deep = b_deep, t.b_right = LANES;
        if (b_column != 1) {
            fill_panel(t.b, b_column, here, t.depth, panel);
            if (vectors > 1)
                fill_panel(t.b + LANES * b_column, b_column, here - LANES, t.depth, panel + LANES * t.depth);
            t.b = panel, t.b_deep = LANES, t.b_right = LANES * t.depth;
        }
        t.a = a, t.c = c + j;
        for (word left = n, more = tiles; more; more--) {
            const word rows = (left + more - 1) / more;
            compute_tile(&t, (int)rows, vectors);
            t.a += rows * t.a_row, t.c += rows * t.c_row, left -= rows;
        }
    }
}

/* As NumPy's loop of matmul, for float32, where rows or columns of the factors, and rows of the product, are
 * contiguous. If the auxdata is 1, the products are added to what the target holds. */
LOOP_HEAD(multiply_f4)
{
    const word n = dims[1], k = dims[2], m = dims[3], item = sizeof(float);
    const word b_row = strides[5] / item, b_column = strides[6] / item;
    tile t = {.a_row = strides[3] / item, .a_deep = strides[4] / item, .b_deep = b_row, .c_row = strides[7] / item};
    (void)context;
    for (word j = 0; j < dims[0]; j++)
        for (word p = 0; p < k; p += DEPTH) {
            t.a = (const float *)(data[0] + j * strides[0]) + p * t.a_deep;
            t.b = (const float *)(data[1] + j * strides[1]) + p * b_row;
            t.c = (float *)(data[2] + j * strides[2]);
            t.depth = k - p < DEPTH ? k - p : DEPTH, t.adds = auxdata || p;
            multiply(t, n, m, b_column);
        }
    return 0;
}

/* Transpose a matrix of float32: operands are contiguous rows, and rows of the transpose. */
LOOP_HEAD(transpose_f4)
{
    const word rows = dims[1], columns = dims[2], row = strides[0] / sizeof(float), pitch = strides[1] / sizeof(float);
    const float *from = (const float *)data[0];
    float *to = (float *)data[1];
    (void)context, (void)auxdata;
    for (word i = 0; i < rows; i += LANES)
        for (word j = 0; j < columns; j += LANES)
            if (i + LANES <= rows && j + LANES <= columns)
                transpose(from + i * row + j, row, LANES, 0xffff, to + j * pitch + i, pitch, 0xffff);
            else
                transpose(from + i * row + j, row, rows - i, lanes(columns - j), to + j * pitch + i, pitch, lanes(rows - i));
    return 0;
}
#else
typedef int no_products; /* a source must not be empty */
#endif
