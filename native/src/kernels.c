/* Kernels of whole functions, for float32 and float64: gelu, softmax, normalisation, pooling, sampling, small systems,
 * steps of optimisers.
 *
 * A kernel is a loop as those of the machine (machine.c): what it works on are contiguous arrays, of which it is given
 * the addresses, lengths in `dims`, and numbers, always double, as `context`. So the machine runs it as a step, and
 * gradmgr_call runs it for a call from Python: the results are the same bits.
 *
 * They are also the same bits on every processor: sums have a fixed order, 16 sums side by side that are then added up
 * (LANES), and the compiler may neither contract nor reorder. On Linux on x86-64 a kernel is compiled three times, for
 * processors with vectors of 16, 32 and 64 bytes, of which the loader chooses one.
 *
 * There is nothing of Python's headers here; see machine.c.
 */
#include <fenv.h>
#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#if defined(__x86_64__) || defined(_M_X64)
#include <emmintrin.h>
#endif

#if defined(_WIN32)
#define EXPORT __declspec(dllexport)
#else
#define EXPORT __attribute__((visibility("default")))
#endif

#if defined(__GNUC__)
#define INLINE static inline __attribute__((always_inline))
#define RESTRICT __restrict__
#else
#define INLINE static __inline
#define RESTRICT __restrict
#endif

/* For arrays on the stack: vectors that begin within a line of the cache and end in the next take twice the time. */
#if defined(_MSC_VER)
#define ALIGNED __declspec(align(64))
#else
#define ALIGNED _Alignas(64)
#endif

#if defined(FOR_EACH_PROCESSOR) /* as a test does, which compares them */
#elif defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__GLIBC__)
#define FOR_EACH_PROCESSOR __attribute__((target_clones("arch=x86-64-v4", "arch=x86-64-v3", "default")))
#else
#define FOR_EACH_PROCESSOR
#endif

typedef int64_t word;
typedef int (*loop)(void *, char *const *, const word *, const word *, void *);

enum { KERNELS = 5, MOST_OPERANDS = 8, MOST_NUMBERS = 8, LANES = 16, STRIP = 4096, LINE = 64, MANY = 1 << 15 };
/* Numbers that a stack holds; runs shorter than SHORT are joined to up to JOINED numbers; rows whose sums are added up
 * apart, columns taken at a time, and flags of optimisers. */
enum { PIECE = 512, SHORT = 128, JOINED = 4096, ROWS = 64, COLUMNS = 64, SHRINKS = 1, MAXIMIZES = 2, DECAYS = 4 };
/* Columns whose statistics are found together; positions sampled at a time; what is outside of an image; rows of the
 * largest system. */
enum { TOGETHER = 256, POSITIONS = 256, ZEROS = 0, BORDER = 1, REFLECTION = 2, MOST_ROWS = 16 };

static struct {
    word data_offset;                   /* of the address of an array's data in the array object */
    void *none;                         /* Python's None */
    void (*take_reference)(void *);     /* Py_IncRef */
    void *(*make_integer)(long);        /* PyLong_FromLong */
    long long (*integer_of)(void *);    /* PyLong_AsLongLong */
    double (*number_of)(void *);        /* PyFloat_AsDouble */
    void *(*release_lock)(void);        /* PyEval_SaveThread */
    void (*acquire_lock)(void *);       /* PyEval_RestoreThread */
} python;

EXPORT word gradmgr_setup_kernels(word data_offset, void *none, void *take_reference, void *make_integer,
                                  void *integer_of, void *number_of, void *release_lock, void *acquire_lock)
{
    python.data_offset = data_offset;
    python.none = none;
    python.take_reference = (void (*)(void *))take_reference;
    python.make_integer = (void *(*)(long))make_integer;
    python.integer_of = (long long (*)(void *))integer_of;
    python.number_of = (double (*)(void *))number_of;
    python.release_lock = (void *(*)(void))release_lock;
    python.acquire_lock = (void (*)(void *))acquire_lock;
    return KERNELS;
}

static inline char *data_of(const void *array) { return *(char **)((char *)array + python.data_offset); }

/* What Python calls: arrays, lengths, numbers. The function's own words are the kernel, how many arrays and lengths it
 * takes, and the bits that are 0 in the address of an aligned array. Returns None, -2 for data that are
 * not aligned, or what the kernel returned other than 0.
 */
EXPORT void *gradmgr_call(void *self, void *const *args, word count)
{
    const word *of = (const word *)data_of(self);
    const word arrays = of[1], lengths = of[2];
    char *data[MOST_OPERANDS];
    word dims[MOST_OPERANDS], items = 1;
    double numbers[MOST_NUMBERS];
    for (word k = 0; k < arrays; k++) {
        data[k] = data_of(args[k]);
        if ((word)data[k] & of[3])
            return python.make_integer(-2);
    }
    for (word k = 0; k < lengths; k++) {
        dims[k] = python.integer_of(args[arrays + k]);
        items *= items <= MANY && dims[k] > 1 ? dims[k] : 1;
    }
    for (word k = arrays + lengths; k < count; k++)
        numbers[k - arrays - lengths] = python.number_of(args[k]);
    void *thread = items > MANY ? python.release_lock() : 0;
    const int failed = ((loop)of[0])(numbers, data, dims, 0, 0);
    feclearexcept(FE_ALL_EXCEPT); /* as after a run of the machine */
    if (items > MANY)
        python.acquire_lock(thread);
    if (failed)
        return python.make_integer(failed);
    python.take_reference(python.none);
    return python.none;
}

/* ---------------------------------------------------------------- for both types */

#define KERNEL_(name, suffix)                                                                                  \
    EXPORT FOR_EACH_PROCESSOR int gradmgr_##name##_##suffix(void *context, char *const *data, const word *dims, \
                                                            const word *strides, void *auxdata)
#define KERNEL_NAMED(name, suffix) KERNEL_(name, suffix)
#define KERNEL(name) KERNEL_NAMED(name, SUFFIX)
#define OF_TYPE_(name, suffix) name##_##suffix
#define OF_TYPE_NAMED(name, suffix) OF_TYPE_(name, suffix)
#define OF_TYPE(name) OF_TYPE_NAMED(name, SUFFIX)
/* Before a loop that may write over the element that it reads, and has no other dependence. */
#if defined(__clang__)
#define APART_OR_SAME _Pragma("clang loop vectorize(assume_safety)")
#elif defined(__GNUC__)
#define APART_OR_SAME _Pragma("GCC ivdep")
#else
#define APART_OR_SAME __pragma(loop(ivdep))
#endif
#define UNUSED (void)context, (void)dims, (void)strides, (void)auxdata

#include "systems.h"

/* Copy past the caches. Lines that another core has read must be taken from its cache before they are written, up to 30 ns
 * each, which an ordinary copy waits for; these stores go on. */
static inline void copy_past_caches(char *to, const char *from, word bytes)
{
#if defined(__x86_64__) || defined(_M_X64)
    const word first = (word)(-(intptr_t)to & (LINE - 1)), whole = bytes > first ? (bytes - first) / LINE * LINE : 0;
    if (whole) {
        memcpy(to, from, (size_t)first);
        for (word k = first; k < first + whole; k += 16)
            _mm_stream_si128((__m128i *)(to + k), _mm_loadu_si128((const __m128i *)(from + k)));
        memcpy(to + first + whole, from + first + whole, (size_t)(bytes - first - whole));
        _mm_sfence(); /* before what announces them */
        return;
    }
#endif
    memcpy(to, from, (size_t)bytes);
}

/* exp(r) = 1 + r + r^2 q(r) for |r| < 0.4, and exp(-a^2 / 2) times a quotient for the tail of the normal distribution,
 * each with the constant first: coefficients.py computes and explains them. The errors relative to the value, without
 * roundings, are 8.3e-9 and 6.5e-8 for float, 3.5e-19 and 2.5e-17 for double. log(2) is in two parts, of which the
 * first has few bits, so that its product with an exponent is exact. ROUND is added to round to an integer, which then
 * stands in the lowest bits; HALF keeps the upper half of the bits of a number. */
#define REAL float
#define ROOT sqrtf
#define FLOOR floorf
#define RINT rintf
#define INTEGER uint32_t
#define ORDERED int32_t
#define SUFFIX f4
#define MANTISSA 23
#define ROUNDING FLT_EPSILON
#define BIAS 127
#define LOWEST -104.0f
#define NORMAL -87.33f
#define HIGHEST 89.0f
#define ROUND 12582912.0f
#define LOG_2_HIGH 0.693359375f
#define LOG_2_LOW -0.000212194440054690583f
#define SIGN 0x80000000u
#define HALF 0xfffff000u
#define FAR_TAIL 14.4f
#define EXP_Q(r)                                                                                                 \
    (0.499999845909913212f + r * (0.16666408452387477f + r * (0.0416697074607117018f + r *                       \
    (0.00838041320398928487f + r * 0.00137904705614851012f))))
#define TAIL_ABOVE(a)                                                                                            \
    (36.9407426052742429f + a * (34.7296198565951092f + a * (15.3298957230040675f + a *                          \
    (3.61979559492122497f + a * 0.398942299403003084f))))
#define TAIL_BELOW(a)                                                                                            \
    (73.8814840547451955f + a * (128.408225111867385f + a * (96.1729319237646434f + a *                          \
    (39.4246670988221201f + a * (9.07350511244323309f + a)))))
#include "kernels_of_type.h"

#undef REAL
#undef ROOT
#undef FLOOR
#undef RINT
#undef INTEGER
#undef ORDERED
#undef SUFFIX
#undef MANTISSA
#undef ROUNDING
#undef BIAS
#undef LOWEST
#undef NORMAL
#undef HIGHEST
#undef ROUND
#undef LOG_2_HIGH
#undef LOG_2_LOW
#undef SIGN
#undef HALF
#undef FAR_TAIL
#undef EXP_Q
#undef TAIL_ABOVE
#undef TAIL_BELOW

#define REAL double
#define ROOT sqrt
#define FLOOR floor
#define RINT rint
#define INTEGER uint64_t
#define ORDERED int64_t
#define SUFFIX f8
#define MANTISSA 52
#define ROUNDING DBL_EPSILON
#define BIAS 1023
#define LOWEST -746.0
#define NORMAL -708.39
#define HIGHEST 710.0
#define ROUND 6755399441055744.0
#define LOG_2_HIGH 0.693147180560117704
#define LOG_2_LOW -1.72394445256148348e-13
#define SIGN 0x8000000000000000ull
#define HALF 0xfffffffff8000000ull
#define FAR_TAIL 38.6
#define EXP_Q(r)                                                                                                 \
    (0.500000000000000024 + r * (0.166666666666667363 + r * (0.0416666666666642734 + r *                         \
    (0.00833333333328233159 + r * (0.00138888888896008613 + r * (0.000198412699710092267 + r *                   \
    (0.0000248015864173555673 + r * (2.75571698815781608e-6 + r * (2.75577843145704767e-7 + r *                  \
    (2.51318619915946586e-8 + r * 2.08101264266499973e-9))))))))))
#define TAIL_ABOVE(a)                                                                                            \
    (668562.321242213081 + a * (1137786.30919751568 + a * (957094.185031410309 + a *                             \
    (515401.499085806418 + a * (195115.993317717379 + a * (54045.2053487579552 + a *                             \
    (11083.2368431921609 + a * (1664.54322511992799 + a * (176.002422664438342 + a *                             \
    (11.9266721333670741 + a * 0.398942280401432683))))))))))
#define TAIL_BELOW(a)                                                                                            \
    (1337124.64248442616 + a * (3342443.72650240642 + a * (3912510.29354925798 + a *                             \
    (2836936.39482834967 + a * (1419345.42387103873 + a * (515992.473909447748 + a *                             \
    (139583.839512692461 + a * (28220.7274941187067 + a * (4202.28684602777448 + a *                             \
    (442.172649054212757 + a * (29.8957335917515891 + a)))))))))))
#include "kernels_of_type.h"
