/* The machine of gradmgr's native replays: it runs a program of loops over arrays.
 *
 * A program is words of 64 bits that gradmgr/_replay/placement.py writes. A segment of it is what runs between two
 * lines of Python:
 *
 *     patches, flags, where the steps start, patches x (argument | alignment mask << 24 | word << 32, offset)
 *
 * A patch writes into a word of some step, counted from here, the address of the data of an argument, plus an offset.
 * Then the steps:
 *
 *     how many words on its description stands (fewer than 0, as that comes first), addresses of its operands
 *
 * and a 0 at the end. Steps that are the same but for their operands share a description:
 *
 *     loop, context, auxdata, operands n, inner dims k, strides s, outer dims o,
 *     k dims, s strides, o outer dims, o x n outer strides
 *
 * A number above 0 heads a group: number of steps, rows, rows of a strip; the steps of the group follow, and run strip
 * by strip, so that what they share stays in the cache. Behind their descriptions, which only steps of groups share,
 * stand the word that is the extent of the outermost axis, that extent for one row, and by how many bytes each operand
 * moves from row to row: 0 for what all rows share, and for what is needed for one strip only.
 *
 * A loop has the signature of NumPy's inner loops, of which most are; the rest are below. One that returns other than
 * 0 stops the machine. There is nothing of Python's headers here: of a Python object only the address of an array's
 * data is read, at an offset that the loader has tested, and functions of Python come as addresses.
 */
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

typedef int64_t word;
typedef int (*loop)(void *, char *const *, const word *, const word *, void *);

enum { MOST_OPERANDS = 8, MOST_DIMS = 32, VERSION = 3 };
enum { LOOP, CONTEXT, AUXDATA, OPERANDS, INNER, STRIDES, OUTER, DIMS };

static struct {
    word data_offset;                   /* of the address of an array's data in the array object */
    void *none;                         /* Python's None */
    void (*take_reference)(void *);     /* Py_IncRef */
    void *(*make_integer)(long);        /* PyLong_FromLong */
    void *(*release_lock)(void);        /* PyEval_SaveThread */
    void (*acquire_lock)(void *);       /* PyEval_RestoreThread */
} python;

EXPORT word gradmgr_setup(word data_offset, void *none, void *take_reference, void *make_integer, void *release_lock,
                          void *acquire_lock)
{
    python.data_offset = data_offset;
    python.none = none;
    python.take_reference = (void (*)(void *))take_reference;
    python.make_integer = (void *(*)(long))make_integer;
    python.release_lock = (void *(*)(void))release_lock;
    python.acquire_lock = (void (*)(void *))acquire_lock;
    return VERSION;
}

static inline char *data_of(const void *array) { return *(char **)((char *)array + python.data_offset); }

/* ---------------------------------------------------------------- the machine */

static int run_outer(const word *about, char **data)
{
    const word n = about[OPERANDS], outer = about[OUTER];
    const word *dims = about + DIMS, *strides = dims + about[INNER], *extent = strides + about[STRIDES];
    const word *moves = extent + outer;
    word at[MOST_DIMS] = {0};
    for (;;) {
        char *given[MOST_OPERANDS]; /* some loops, such as that of matmul, move the addresses that they are given */
        memcpy(given, data, sizeof(given));
        const int stopped = ((loop)about[LOOP])((void *)about[CONTEXT], given, dims, strides, (void *)about[AUXDATA]);
        if (stopped)
            return stopped;
        word d = outer - 1;
        for (; d >= 0; d--) {
            for (word j = 0; j < n; j++)
                data[j] += moves[d * n + j];
            if (++at[d] < extent[d])
                break;
            for (word j = 0; j < n; j++)
                data[j] -= moves[d * n + j] * extent[d];
            at[d] = 0;
        }
        if (d < 0)
            return 0;
    }
}

/* Run a step that has a description, from row `start` on, where operands move by so many bytes from row to row. */
static inline int run_step(const word *w, const word *about, word start, const word *moves)
{
    const word n = about[OPERANDS], *dims = about + DIMS;
    char *data[MOST_OPERANDS];
    for (word j = 0; j < n; j++)
        data[j] = (char *)w[1 + j] + (start ? start * moves[j] : 0);
    if (about[OUTER])
        return run_outer(about, data);
    return ((loop)about[LOOP])((void *)about[CONTEXT], data, dims, dims + about[INNER], (void *)about[AUXDATA]);
}

/* Run a group strip by strip; return how many words it has, 0 where a loop has stopped. */
static word run_group(word *group)
{
    const word count = group[0], rows = group[1], most = group[2];
    word *end = group;
    for (word start = 0; start < rows; start += most) {
        const word here = rows - start < most ? rows - start : most;
        word *w = group + 3;
        for (word k = 0; k < count; k++) {
            word *about = w + w[0];
            const word n = about[OPERANDS];
            const word *behind = about + DIMS + about[INNER] + about[STRIDES] + about[OUTER] * (n + 1);
            about[behind[0]] = here * behind[1];
            if (run_step(w, about, start, behind + 2))
                return 0;
            w += 1 + n;
        }
        end = w;
    }
    return end - group;
}

/* Run a segment; return the number of words before the step that stopped, -1 at the end. */
static word run_steps(word *first)
{
    word *w = first;
    while (*w) {
        if (*w > 0) {
            const word length = run_group(w);
            if (!length)
                return w - first;
            w += length;
        } else {
            const word *about = w + *w;
            if (run_step(w, about, 0, 0))
                return w - first;
            w += 1 + about[OPERANDS];
        }
    }
    return -1;
}

/* What Python calls, as a function of arrays: None, or where it stopped; -2 for data that are not aligned. */
EXPORT void *gradmgr_run(void *self, void *const *args, word count)
{
    word *segment = (word *)data_of(self);
    (void)count;
    for (word k = 0; k < segment[0]; k++) {
        const word *patch = segment + 3 + 2 * k;
        char *data = data_of(args[patch[0] & 0xffffff]);
        if ((word)data & (patch[0] >> 24 & 0xff))
            return python.make_integer(-2);
        segment[patch[0] >> 32] = (word)(data + patch[1]);
    }
    void *thread = segment[1] ? python.release_lock() : 0;
    const word stopped = run_steps(segment + segment[2]);
    feclearexcept(FE_ALL_EXCEPT); /* the loops leave flags, which a later call of NumPy's might report */
    if (segment[1])
        python.acquire_lock(thread);
    if (stopped >= 0)
        return python.make_integer((long)stopped);
    python.take_reference(python.none);
    return python.none;
}

/* What an array holds, from the end of the head that each object of Python's has: its class, which is the last of the
 * head, and what NumPy's ABI says of arrays. The loader has tested that they stand there. */
typedef struct {
    const void *kind;
    const char *data;
    int axes;
    const word *extents, *strides;
    const void *base, *dtype;
} array_facts;

/* What Python calls, as a function of arrays: None where each has the class, dtype, shape and strides that the words
 * say, else the number of the first that has not. For each array: class, dtype, axes n, n extents, n strides. */
EXPORT void *gradmgr_test_layouts(void *self, void *const *args, word count)
{
    const word *expected = (const word *)data_of(self);
    for (word k = 0; k < count; k++) {
        const array_facts *found = (const array_facts *)((char *)args[k] + python.data_offset - sizeof(void *));
        const word axes = expected[2], *extents = expected + 3, *strides = extents + axes;
        if ((word)found->kind != expected[0] || (word)found->dtype != expected[1] || found->axes != axes)
            return python.make_integer((long)k);
        for (word d = 0; d < axes; d++)
            if (found->extents[d] != extents[d] || found->strides[d] != strides[d])
                return python.make_integer((long)k);
        expected = strides + axes;
    }
    python.take_reference(python.none);
    return python.none;
}

/* ---------------------------------------------------------------- loops of our own */

#define LOOP_HEAD(name) \
    EXPORT int gradmgr_##name(void *context, char *const *data, const word *dims, const word *strides, void *auxdata)

typedef struct {
    word half[2];
} pair;

/* Operands: source, target. */
#define COPY(name, type)                                                       \
    LOOP_HEAD(name)                                                            \
    {                                                                          \
        const word n = dims[0], s = strides[0], t = strides[1];                \
        const char *from = data[0];                                            \
        char *to = data[1];                                                    \
        (void)context, (void)auxdata;                                          \
        if (s == sizeof(type) && t == sizeof(type)) {                          \
            memmove(to, from, n * sizeof(type));                               \
            return 0;                                                          \
        }                                                                      \
        for (word k = 0; k < n; k++, from += s, to += t)                       \
            memcpy(to, from, sizeof(type));                                    \
        return 0;                                                              \
    }
COPY(copy1, uint8_t)
COPY(copy2, uint16_t)
COPY(copy4, uint32_t)
COPY(copy8, uint64_t)
COPY(copy16, pair)

/* Operands: condition, chosen where it is true, chosen elsewhere, target. Without gaps both are read, and no branch is
 * taken: of values that follow no order a processor foresees half of the branches wrongly. */
#define CHOOSE(type, one, other)                                                                  \
    for (word k = 0; k < n; k++) {                                                                \
        const type mask = (type)-(type)(c[k] != 0), a = one, b = other;                           \
        ((type *)to)[k] = (type)((a & mask) | (b & (type)~mask));                                 \
    }
#define WHERE(name, type)                                                                         \
    LOOP_HEAD(name)                                                                               \
    {                                                                                             \
        const char *c = data[0], *x = data[1], *y = data[2];                                      \
        char *to = data[3];                                                                       \
        const word n = dims[0], size = sizeof(type), s = strides[1], t = strides[2];              \
        (void)context, (void)auxdata;                                                             \
        if (strides[0] == 1 && strides[3] == size && (s == size || !s) && (t == size || !t) && s + t)  \
        {                                                                                         \
            if (s && t)                                                                           \
                CHOOSE(type, ((const type *)x)[k], ((const type *)y)[k])                          \
            else if (s)                                                                           \
                CHOOSE(type, ((const type *)x)[k], *(const type *)y)                              \
            else                                                                                  \
                CHOOSE(type, *(const type *)x, ((const type *)y)[k])                              \
            return 0;                                                                             \
        }                                                                                         \
        for (word k = 0; k < n; k++) {                                                            \
            memcpy(to, *c ? x : y, sizeof(type));                                                 \
            c += strides[0], x += s, y += t, to += strides[3];                                    \
        }                                                                                         \
        return 0;                                                                                 \
    }
WHERE(where1, uint8_t)
WHERE(where2, uint16_t)
WHERE(where4, uint32_t)
WHERE(where8, uint64_t)

LOOP_HEAD(where16)
{
    const char *c = data[0], *x = data[1], *y = data[2];
    char *to = data[3];
    (void)context, (void)auxdata;
    for (word k = 0; k < dims[0]; k++) {
        memcpy(to, *c ? x : y, sizeof(pair));
        c += strides[0], x += strides[1], y += strides[2], to += strides[3];
    }
    return 0;
}

#define CAST(name, from_type, to_type)                                                            \
    LOOP_HEAD(name)                                                                               \
    {                                                                                             \
        const char *from = data[0];                                                               \
        char *to = data[1];                                                                       \
        (void)context, (void)auxdata;                                                             \
        for (word k = 0; k < dims[0]; k++, from += strides[0], to += strides[1])                  \
            *(to_type *)to = (to_type)*(const from_type *)from;                                   \
        return 0;                                                                                 \
    }
/* To complex numbers, whose imaginary parts are 0. */
#define CAST_COMPLEX(name, from_type, to_type)                                                    \
    LOOP_HEAD(name)                                                                               \
    {                                                                                             \
        const char *from = data[0];                                                               \
        char *to = data[1];                                                                       \
        (void)context, (void)auxdata;                                                             \
        for (word k = 0; k < dims[0]; k++, from += strides[0], to += strides[1]) {                \
            ((to_type *)to)[0] = (to_type)*(const from_type *)from;                               \
            ((to_type *)to)[1] = 0;                                                               \
        }                                                                                         \
        return 0;                                                                                 \
    }
#define CASTS(name, type)                     \
    CAST(name##_to_f4, type, float)           \
    CAST(name##_to_f8, type, double)          \
    CAST_COMPLEX(name##_to_c8, type, float)   \
    CAST_COMPLEX(name##_to_c16, type, double)
CASTS(b1, uint8_t)
CASTS(i4, int32_t)
CASTS(i8, int64_t)
CASTS(f4, float)
CASTS(f8, double)
CAST(b1_to_i8, uint8_t, int64_t)
CAST(i4_to_i8, int32_t, int64_t)

/* One operand, a truth; the context is what it must be. */
LOOP_HEAD(guard)
{
    (void)dims, (void)strides, (void)auxdata;
    return (*data[0] != 0) != (context != 0);
}

/* Rows by number: source, numbers (int64), target; the context is how many there are, the auxdata the bytes of one. */
LOOP_HEAD(take)
{
    const word rows = (word)context, bytes = (word)auxdata;
    const char *numbers = data[1];
    char *to = data[2];
    for (word k = 0; k < dims[0]; k++, numbers += strides[1], to += strides[2]) {
        word row = *(const word *)numbers;
        row += row < 0 ? rows : 0;
        if (row < 0 || row >= rows)
            return 1;
        memcpy(to, data[0] + row * strides[0], bytes);
    }
    return 0;
}

/* ---------------------------------------------------------------- products of matrices by oneDNN */

typedef struct {
    int (*multiply)(char, char, word, word, word, float, const float *, word, const float *, word, float, float *, word);
    int (*threads)(void);               /* omp_get_max_threads; 0 where the library starts no threads */
    void (*set_threads)(int);           /* omp_set_num_threads, which is for the calling thread */
} library;

/* The library's product of stacks of matrices, as NumPy's loop of matmul for float32, where rows or columns of the
 * factors, and rows of the product, are contiguous. The context is the library. If the auxdata is 1, the products are
 * added to what the target holds. On this thread alone: a process in which OpenMP has started threads must not fork. */
LOOP_HEAD(product_f4)
{
    const library *of = (const library *)context;
    const word n = dims[1], k = dims[2], m = dims[3], item = sizeof(float);
    const char first = strides[4] == item ? 'N' : 'T', second = strides[6] == item ? 'N' : 'T';
    const word a_step = (first == 'N' ? strides[3] : strides[4]) / item;
    const word b_step = (second == 'N' ? strides[5] : strides[6]) / item;
    const int threads = of->threads ? of->threads() : 1;
    int failed = 0;
    if (threads != 1)
        of->set_threads(1);
    for (word j = 0; j < dims[0]; j++)
        failed |= of->multiply(first, second, n, m, k, 1.0f, (const float *)(data[0] + j * strides[0]), a_step,
                               (const float *)(data[1] + j * strides[1]), b_step, auxdata ? 1.0f : 0.0f,
                               (float *)(data[2] + j * strides[2]), strides[7] / item);
    if (threads != 1)
        of->set_threads(threads);
    return failed;
}

/* Operands: found, expected, what bounds their difference but for a factor, whose bits are the context. Where the bound
 * is not finite, nothing is known. */
LOOP_HEAD(within_f4)
{
    const char *found = data[0], *expected = data[1], *bounds = data[2];
    const uint32_t bits = (uint32_t)(uintptr_t)context;
    float factor;
    (void)auxdata;
    memcpy(&factor, &bits, sizeof(factor));
    for (word k = 0; k < dims[0]; k++, found += strides[0], expected += strides[1], bounds += strides[2]) {
        const float bound = factor * *(const float *)bounds + FLT_MIN; /* below which digits are lost */
        if (isfinite(bound) && !(fabsf(*(const float *)found - *(const float *)expected) <= bound))
            return 1;
    }
    return 0;
}
