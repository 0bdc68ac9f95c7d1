// The operations of a decoder besides its large matrix products: norms, activation, rotary positions, adapters of few
// rows, attention of prompts and of new tokens, and the sums for drawing tokens. build.py compiles this file and
// compares its results with torch's. kernels.py calls it, and checks the format and shape of every tensor first.
//
// Every function exists for float and for bfloat16, and computes in float. Tensors are consecutive rows; "step" is the
// distance between rows in elements if it may be larger than the width of a row.
// Letters as in attention.py and kernels.py: N = tokens, W = width, R = rows, B = prompts, H = query heads, K = key/value
// heads, D = head size, P = room for prompt tokens, T = room for new tokens, C = chunks of the vocabulary. Template
// parameters: T = number format, V = vectors of a head, Q and R = rows at a time, C = vectors of columns at a time.

#ifdef __AVX512BF16__
#include <immintrin.h>
#endif

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>
#include <vector>

namespace {

constexpr int kLanes = 16;
typedef float Eight __attribute__((vector_size(32)));
typedef float Four __attribute__((vector_size(16)));

struct bfloat16 {
    uint16_t bits;
};

#ifdef __AVX512F__
constexpr int kRegister = 16;  // lanes of a register
constexpr int kSums = 24;      // running sums that registers hold
constexpr int kRanks = 3;      // of these, columns of an adapter's product
#elif defined(__AVX__)
constexpr int kRegister = 8;
constexpr int kSums = 6;
constexpr int kRanks = 1;
#else
constexpr int kRegister = 4;
constexpr int kSums = 6;
constexpr int kRanks = 1;
#endif
constexpr int kRegisters = kLanes / kRegister;

typedef float Register __attribute__((vector_size(4 * kRegister)));
typedef int32_t RegisterInts __attribute__((vector_size(4 * kRegister)));
typedef uint32_t RegisterWords __attribute__((vector_size(4 * kRegister)));
typedef uint16_t RegisterHalves __attribute__((vector_size(2 * kRegister)));

// Calls work with the index of each register of a vector. Not a loop, which would keep the registers in memory.
template <class Work>
inline void for_registers(Work work) {
    work(0);
    if constexpr (kRegisters > 1) work(1);
    if constexpr (kRegisters > 2) work(2), work(3);
}

#ifdef __AVX512F__
typedef Register Floats;
inline const Register& in(const Floats& x, int) { return x; }
inline Register& in(Floats& x, int) { return x; }
#else
// A vector of several registers. A vector type that is wider than a register would compile, but stay in memory, which
// is up to fourteen times slower.
class Floats {
    Register part_[kRegisters];

  public:
    Floats() {
        for_registers([&](int i) { part_[i] = Register{}; });
    }
    Floats(float same) {
        for_registers([&](int i) { part_[i] = Register{} + same; });
    }
    float operator[](int lane) const { return part_[lane / kRegister][lane % kRegister]; }
    friend const Register& in(const Floats& x, int i) { return x.part_[i]; }
    friend Register& in(Floats& x, int i) { return x.part_[i]; }
};
#endif

// Returns a vector whose registers are the results of work.
template <class Work>
inline Floats by_registers(Work work) {
    Floats out;
    for_registers([&](int i) { in(out, i) = work(i); });
    return out;
}

#ifndef __AVX512F__
inline Floats operator+(const Floats& a, const Floats& b) {
    return by_registers([&](int i) { return in(a, i) + in(b, i); });
}
inline Floats operator-(const Floats& a, const Floats& b) {
    return by_registers([&](int i) { return in(a, i) - in(b, i); });
}
inline Floats operator*(const Floats& a, const Floats& b) {
    return by_registers([&](int i) { return in(a, i) * in(b, i); });
}
inline Floats operator/(const Floats& a, const Floats& b) {
    return by_registers([&](int i) { return in(a, i) / in(b, i); });
}
inline Floats operator-(const Floats& a) {
    return by_registers([&](int i) { return -in(a, i); });
}
inline Floats& operator+=(Floats& a, const Floats& b) { return a = a + b; }
#endif

// The elementwise maximum and minimum; NaN in a is kept.
inline Floats larger(const Floats& a, const Floats& b) {
    return by_registers([&](int i) { return in(b, i) > in(a, i) ? in(b, i) : in(a, i); });
}
inline Floats smaller(const Floats& a, const Floats& b) {
    return by_registers([&](int i) { return in(b, i) < in(a, i) ? in(b, i) : in(a, i); });
}
// Returns `kept` if x is not below the limit, else 0, elementwise.
inline Floats unless_below(const Floats& x, float limit, const Floats& kept) {
    return by_registers([&](int i) { return in(x, i) < limit ? Register{} : in(kept, i); });
}
// Returns 2 to the power of integers.
inline Floats power_of_two(const Floats& whole) {
    return by_registers(
        [&](int i) { return (Register)((__builtin_convertvector(in(whole, i), RegisterInts) + 127) << 23); });
}

inline Floats load(const float* from) {
    return by_registers([&](int i) {
        Register wide;
        std::memcpy(&wide, from + i * kRegister, sizeof wide);
        return wide;
    });
}

inline Floats load(const bfloat16* from) {
    return by_registers([&](int i) {
        RegisterHalves narrow;
        std::memcpy(&narrow, from + i * kRegister, sizeof narrow);
        return (Register)(__builtin_convertvector(narrow, RegisterWords) << 16);
    });
}

inline void store(float* to, const Floats& wide) {
    for_registers([&](int i) { std::memcpy(to + i * kRegister, &in(wide, i), sizeof in(wide, i)); });
}

inline void store(bfloat16* to, const Floats& wide) {  // rounds to nearest, ties to even
    for_registers([&](int i) {
        RegisterWords bits = (RegisterWords)in(wide, i);
        bits += 0x7fff + ((bits >> 16) & 1);
        RegisterHalves narrow = __builtin_convertvector(bits >> 16, RegisterHalves);
        std::memcpy(to + i * kRegister, &narrow, sizeof narrow);
    });
}

// Like load and store, for the end of a row, where fewer than kLanes elements are left; other lanes are 0.
template <class T>
inline Floats load(const T* from, int64_t left) {
    if (left >= kLanes) return load(from);
    T padded[kLanes] = {};
    std::copy(from, from + left, padded);
    return load(padded);
}

template <class T>
inline void store(T* to, Floats wide, int64_t left) {
    if (left >= kLanes) return store(to, wide);
    T padded[kLanes];
    store(padded, wide);
    std::copy(padded, padded + left, to);
}

template <class T>
inline Floats rounded(Floats wide) {
    T narrow[kLanes];
    store(narrow, wide);
    return load(narrow);
}

inline float sum(Floats x) {
    Eight eights[2];
    std::memcpy(eights, &x, sizeof x);
    Eight eight = eights[0] + eights[1];
    Four fours[2];
    std::memcpy(fours, &eight, sizeof eight);
    Four four = fours[0] + fours[1];
    return (four[0] + four[2]) + (four[1] + four[3]);
}

#ifdef __clang__
#define CHOOSE(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define CHOOSE(a, b, ...) __builtin_shuffle(a, b, RegisterInts{__VA_ARGS__})
#endif

// Returns the sum of each of kLanes vectors: adds halves of pairs until one number per vector is left.
inline Floats sums(const Floats* x) {
#ifdef __AVX512F__
    Register eights[8], fours[4], twos[2];
    for (int i = 0; i < 8; i++) {
        Register a = x[2 * i], b = x[2 * i + 1];
        eights[i] = CHOOSE(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
                    CHOOSE(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
    }
    for (int i = 0; i < 4; i++) {
        Register a = eights[2 * i], b = eights[2 * i + 1];
        fours[i] = CHOOSE(a, b, 0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27) +
                   CHOOSE(a, b, 4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31);
    }
    for (int i = 0; i < 2; i++) {
        Register a = fours[2 * i], b = fours[2 * i + 1];
        twos[i] = CHOOSE(a, b, 0, 1, 4, 5, 8, 9, 12, 13, 16, 17, 20, 21, 24, 25, 28, 29) +
                  CHOOSE(a, b, 2, 3, 6, 7, 10, 11, 14, 15, 18, 19, 22, 23, 26, 27, 30, 31);
    }
    return CHOOSE(twos[0], twos[1], 0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
           CHOOSE(twos[0], twos[1], 1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#elif defined(__AVX__)
    return by_registers([&](int half) {  // eight vectors a to h; their order is restored at the end
        Register fours[4], twos[2];
        for (int i = 0; i < 4; i++) {
            const Floats *left = x + 8 * half + 2 * i, *right = left + 1;
            Register a = in(*left, 0) + in(*left, 1), b = in(*right, 0) + in(*right, 1);
            fours[i] = CHOOSE(a, b, 0, 1, 2, 3, 8, 9, 10, 11) + CHOOSE(a, b, 4, 5, 6, 7, 12, 13, 14, 15);
        }
        for (int i = 0; i < 2; i++) {
            Register a = fours[2 * i], b = fours[2 * i + 1];
            twos[i] = CHOOSE(a, b, 0, 1, 8, 9, 4, 5, 12, 13) + CHOOSE(a, b, 2, 3, 10, 11, 6, 7, 14, 15);
        }
        Register mixed = CHOOSE(twos[0], twos[1], 0, 2, 8, 10, 4, 6, 12, 14) +
                     CHOOSE(twos[0], twos[1], 1, 3, 9, 11, 5, 7, 13, 15);  // a c e g b d f h
        return CHOOSE(mixed, mixed, 0, 4, 1, 5, 2, 6, 3, 7);
    });
#else
    float each[kLanes];
    for (int i = 0; i < kLanes; i++) each[i] = sum(x[i]);
    return load(each);
#endif
}

inline float largest(Floats x) {
    Eight eights[2];
    std::memcpy(eights, &x, sizeof x);
    Eight eight = eights[0] > eights[1] ? eights[0] : eights[1];
    Four fours[2];
    std::memcpy(fours, &eight, sizeof eight);
    Four four = fours[0] > fours[1] ? fours[0] : fours[1];
    return std::max(std::max(four[0], four[2]), std::max(four[1], four[3]));
}

// exp(x) with a relative error of 1e-7 (Cephes); x is clamped to [-87, 88].
inline Floats exponential(Floats x) {
    x = smaller(larger(x, Floats{} - 87.0f), Floats{} + 88.0f);
    Floats whole = (x * 1.44269504088896341f + 12582912.0f) - 12582912.0f;  // 1.5 * 2^23: rounds
    Floats rest = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    Floats series = Floats{} + 1.9875691500e-4f;
    series = series * rest + 1.3981999507e-3f;
    series = series * rest + 8.3334519073e-3f;
    series = series * rest + 4.1665795894e-2f;
    series = series * rest + 1.6666665459e-1f;
    series = series * rest + 5.0000001201e-1f;
    series = series * rest * rest + rest + 1.0f;
    return series * power_of_two(whole);
}

inline Floats sigmoid(Floats x) { return 1.0f / (1.0f + exponential(-x)); }

// Returns the number of threads, reduced if starting them would cost more than they save.
inline int helpers(int64_t elements, int threads) {
    return static_cast<int>(std::max<int64_t>(1, std::min<int64_t>(threads, elements / 8192)));
}

// --- norms ------------------------------------------------------------------------------------------------

// out = x / sqrt(mean(x^2) + eps) * weight; inverse_N gets 1 / sqrt(...), unless it is null.
template <class T>
void norm(const T* x, int64_t step, const T* weight_W, float eps, int64_t rows, int64_t width, T* out,
          float* inverse_N, int threads) {
#pragma omp parallel for num_threads(helpers(rows * width, threads)) schedule(static)
    for (int64_t n = 0; n < rows; n++) {
        const T* from = x + n * step;
        Floats squares = {};
        for (int64_t i = 0; i < width; i += kLanes) {
            Floats value = load(from + i, width - i);
            squares += value * value;
        }
        float inverse = 1.0f / __builtin_sqrtf(sum(squares) / width + eps);
        for (int64_t i = 0; i < width; i += kLanes) {
            Floats scaled = rounded<T>(load(from + i, width - i) * inverse);
            store(out + n * width + i, scaled * load(weight_W + i, width - i), width - i);
        }
        if (inverse_N) inverse_N[n] = inverse;
    }
}

// dx = inverse (dy w - x inverse^2 mean(dy w x))
template <class T>
void norm_back(const T* x, int64_t step, const T* weight_W, const float* inverse_N, const T* dy, int64_t dy_step,
               int64_t rows, int64_t width, T* dx, int threads) {
#pragma omp parallel for num_threads(helpers(rows * width, threads)) schedule(static)
    for (int64_t n = 0; n < rows; n++) {
        const T *from = x + n * step, *slope = dy + n * dy_step;
        Floats along = {};
        for (int64_t i = 0; i < width; i += kLanes)
            along += load(slope + i, width - i) * load(weight_W + i, width - i) * load(from + i, width - i);
        float inverse = inverse_N[n], share = sum(along) / width * inverse * inverse;
        for (int64_t i = 0; i < width; i += kLanes) {
            Floats weighted = load(slope + i, width - i) * load(weight_W + i, width - i);
            store(dx + n * width + i, (weighted - load(from + i, width - i) * share) * inverse, width - i);
        }
    }
}

// --- the activation ---------------------------------------------------------------------------------------

// out = silu(gate) * up, from gate and up side by side.
template <class T>
void swiglu(const T* joint, int64_t rows, int64_t width, T* out, int threads) {
#pragma omp parallel for num_threads(helpers(rows * width, threads)) schedule(static)
    for (int64_t n = 0; n < rows; n++)
        for (int64_t i = 0; i < width; i += kLanes) {
            const T* from = joint + 2 * n * width + i;
            Floats gate = load(from, width - i);
            store(out + n * width + i, gate * sigmoid(gate) * load(from + width, width - i), width - i);
        }
}

template <class T>
void swiglu_back(const T* joint, const T* dy, int64_t dy_step, int64_t rows, int64_t width, T* out, int threads) {
#pragma omp parallel for num_threads(helpers(rows * width, threads)) schedule(static)
    for (int64_t n = 0; n < rows; n++)
        for (int64_t i = 0; i < width; i += kLanes) {
            int64_t left = width - i, at = 2 * n * width + i;
            Floats gate = load(joint + at, left), up = load(joint + at + width, left);
            Floats slope = load(dy + n * dy_step + i, left), share = sigmoid(gate);
            store(out + at, slope * up * share * (1.0f + gate * (1.0f - share)), left);
            store(out + at + width, slope * gate * share, left);
        }
}

// --- rotary positions -------------------------------------------------------------------------------------

// Rotates half-split heads by the angles, or back if sign is -1.
template <class T>
void rotate(const T* x, int64_t step, const T* cos, const T* sin, int64_t angle_step, float sign, int64_t rows,
            int64_t heads, int64_t half, T* out, int threads) {
#pragma omp parallel for num_threads(helpers(rows * heads * half, threads)) schedule(static)
    for (int64_t n = 0; n < rows; n++)
        for (int64_t h = 0; h < heads; h++) {
            const T* from = x + n * step + 2 * h * half;
            T* to = out + 2 * (n * heads + h) * half;
            for (int64_t i = 0; i < half; i += kLanes) {
                int64_t left = half - i;
                Floats a = load(from + i, left), b = load(from + half + i, left);
                Floats c = load(cos + n * angle_step + i, left);
                Floats s = load(sin + n * angle_step + i, left) * sign;
                store(to + i, a * c - b * s, left);
                store(to + half + i, b * c + a * s, left);
            }
        }
}

// --- low-rank adapters ------------------------------------------------------------------------------------

// One of several joint projections: its columns, its ranks, and the start of its matrix.
struct Part {
    int64_t column, columns, rank, ranks, begin;
};

// found[r][c] += sum over k of matrix[k][c] * factors[r][k], in R rows and C vectors of columns
template <int R, int C>
inline void multiply(const float* matrix, int64_t step, const float* factors, int64_t factor_step, int64_t count,
                     Floats (&found)[R][C]) {
    for (int64_t k = 0; k < count; k++) {
        Floats row[C];
        for (int c = 0; c < C; c++) row[c] = load(matrix + k * step + c * kLanes);
        for (int r = 0; r < R; r++)
            for (int c = 0; c < C; c++) found[r][c] += row[c] * factors[r * factor_step + k];
    }
}

// low = x A^T, for C vectors of ranks from k on
template <int R, int C>
void down_project(const float* wide, int64_t inputs, const float* down, int64_t padded, int64_t k, float* low) {
    Floats found[R][C] = {};
    multiply(down + k, padded, wide, inputs, inputs, found);
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) store(low + r * padded + k + c * kLanes, found[r][c]);
}

// y += low B^T, for C vectors of columns from o on
template <class T, int R, int C>
void up_project(const float* low, int64_t padded, const float* up, const Part& part, int64_t o, T* y, int64_t outputs) {
    T* to = y + part.column + o;
    int64_t left = part.columns - o;
    Floats found[R][C];
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) found[r][c] = load(to + r * outputs + c * kLanes, left - c * kLanes);
    multiply(up + part.begin + o, part.columns, low + part.rank, padded, part.ranks, found);
    for (int r = 0; r < R; r++)
        for (int c = 0; c < C; c++) store(to + r * outputs + c * kLanes, found[r][c], left - c * kLanes);
}

// y += (x A^T) B^T for R rows. down is A transposed, padded to whole vectors; up is B transposed and scaled, followed
// by room for a vector.
template <class T, int R>
void low_rank_rows(const T* x, int64_t inputs, const float* down, int64_t padded, const float* up,
                   const Part* parts, int64_t count, T* y, int64_t outputs, float* wide, float* low) {
    for (int r = 0; r < R; r++)
        for (int64_t i = 0; i < inputs; i += kLanes)
            store(wide + r * inputs + i, load(x + r * inputs + i, inputs - i), inputs - i);
    int64_t k = 0;
    for (; k + kRanks * kLanes <= padded; k += kRanks * kLanes) down_project<R, kRanks>(wide, inputs, down, padded, k, low);
    if (padded - k == 2 * kLanes) down_project<R, 2>(wide, inputs, down, padded, k, low);
    if (padded - k == kLanes) down_project<R, 1>(wide, inputs, down, padded, k, low);
    for (const Part* part = parts; part < parts + count; part++) {
        int64_t o = 0;
        for (; o + kRanks * kLanes <= part->columns; o += kRanks * kLanes)
            up_project<T, R, kRanks>(low, padded, up, *part, o, y, outputs);
        for (; o < part->columns; o += kLanes) up_project<T, R, 1>(low, padded, up, *part, o, y, outputs);
    }
}

template <class T>
void low_rank(const T* x, int64_t rows, int64_t inputs, const float* down, int64_t padded, const float* up,
              const Part* parts, int64_t count, T* y, int64_t outputs, int threads) {
    constexpr int kTogether = kSums / kRanks;
#pragma omp parallel num_threads(helpers(rows * outputs, threads))
    {
        std::vector<float> wide(kTogether * inputs), low(kTogether * padded);
#pragma omp for schedule(static)
        for (int64_t n = 0; n < rows; n += kTogether) {
            if (rows - n >= kTogether)
                low_rank_rows<T, kTogether>(x + n * inputs, inputs, down, padded, up, parts, count, y + n * outputs,
                                        outputs, wide.data(), low.data());
            else
                for (int64_t m = n; m < rows; m++)
                    low_rank_rows<T, 1>(x + m * inputs, inputs, down, padded, up, parts, count, y + m * outputs,
                                        outputs, wide.data(), low.data());
        }
    }
}

// --- attention ---

// Calls work with the number of vectors of a head of this size; returns 0 if the size is not supported.
template <class Work>
int for_head_size(int64_t size, Work work) {
    switch (size) {
        case 16: work(std::integral_constant<int, 1>()); return 1;
        case 32: work(std::integral_constant<int, 2>()); return 1;
        case 64: work(std::integral_constant<int, 4>()); return 1;
        case 80: work(std::integral_constant<int, 5>()); return 1;
        case 96: work(std::integral_constant<int, 6>()); return 1;
        case 128: work(std::integral_constant<int, 8>()); return 1;
        default: return 0;
    }
}

// Returns whether `count` places from `begin` on are within `room` places.
inline bool within(int64_t begin, int64_t count, int64_t room) {
    return 0 <= begin && begin <= room && 0 <= count && count <= room - begin;
}

// --- attention of one new token per row -------------------------------------------------------------------

// Rows that continue the same prompt.
struct Task {
    int64_t prompt, first, end;
};

constexpr int64_t kAhead = 48;  // how many tokens ahead keys or values are prefetched

// Prefetches memory that will be read soon; invalid addresses are ignored.
template <class T>
inline void prefetch(const T* from, int64_t count) {
    for (int64_t x = 0; x < count; x += 64 / sizeof(T)) __builtin_prefetch(from + x);
}

// The dot product of two heads as partial sums, one per lane.
template <class T, int V>
inline Floats products(const T* a, const T* b) {
#ifdef __AVX512BF16__
    if constexpr (std::is_same_v<T, bfloat16> && V % 2 == 0) {
        __m512 found = {};
        for (int v = 0; v < V * kLanes; v += 2 * kLanes) {
            __m512bh left, right;
            std::memcpy(&left, a + v, sizeof left);
            std::memcpy(&right, b + v, sizeof right);
            found = _mm512_dpbf16_ps(found, left, right);
        }
        return (Floats)found;
    }
#endif
    Floats found = load(a) * load(b);
    for (int v = kLanes; v < V * kLanes; v += kLanes) found += load(a + v) * load(b + v);
    return found;
}

// scores[q][j] = scale * query q . key j
template <class T, int V>
void score(const T* keys, int64_t count, const T* queries, int64_t many, float scale, float* scores, int64_t step) {
    constexpr int64_t D = V * kLanes;
    for (int64_t j = 0; j < count; j += kLanes) {
        const T* some = keys + j * D;
        prefetch(some + kAhead * D, kLanes * D);
        for (int64_t q = 0; q < many; q++) {
            Floats found[kLanes];
            if (count - j >= kLanes)  // a separate branch, because constant indices are cheaper
                for (int64_t i = 0; i < kLanes; i++) found[i] = products<T, V>(some + i * D, queries + q * D);
            else
                for (int64_t i = 0; i < kLanes; i++)
                    found[i] = i < count - j ? products<T, V>(some + i * D, queries + q * D) : Floats{};
            store(scores + q * step + j, sums(found) * scale, count - j);
        }
    }
}

// out[q] += sum over j of weights[q][j] * value j
template <class T, int V, int Q>
void add_weighted_some(const T* values, int64_t count, const float* weights, int64_t step, float* out) {
    Floats found[Q][V];
    for (int q = 0; q < Q; q++)
        for (int v = 0; v < V; v++) found[q][v] = load(out + (q * V + v) * kLanes);
    for (int64_t j = 0; j < count; j++) {
        prefetch(values + (j + kAhead) * V * kLanes, V * kLanes);
        for (int v = 0; v < V; v++) {
            Floats value = load(values + (j * V + v) * kLanes);
            for (int q = 0; q < Q; q++) found[q][v] += value * weights[q * step + j];
        }
    }
    for (int q = 0; q < Q; q++)
        for (int v = 0; v < V; v++) store(out + (q * V + v) * kLanes, found[q][v]);
}

template <class T, int V>
void add_weighted(const T* values, int64_t count, const float* weights, int64_t step, int64_t many, float* out) {
    for (int64_t q = 0; q < many;) {  // as many at once as fit into registers
        int64_t some = std::min<int64_t>(many - q, std::min(4, std::max(1, kSums / (V + 1))));
        const float* from = weights + q * step;
        float* to = out + q * V * kLanes;
        if (some == 4) add_weighted_some<T, V, 4>(values, count, from, step, to);
        if (some == 3) add_weighted_some<T, V, 3>(values, count, from, step, to);
        if (some == 2) add_weighted_some<T, V, 2>(values, count, from, step, to);
        if (some == 1) add_weighted_some<T, V, 1>(values, count, from, step, to);
        q += some;
    }
}

// Replaces scores by weights exp(score - largest); returns 1 / their sum. Overwrites the rest of the last vector beyond
// count.
inline float exp_and_share(float* scores, int64_t count) {
    int64_t end = (count + kLanes - 1) / kLanes * kLanes;
    for (int64_t j = count; j < end; j++) scores[j] = -1e30f;
    Floats most = load(scores);
    for (int64_t j = kLanes; j < end; j += kLanes) {
        most = larger(most, load(scores + j));
    }
    float top = largest(most);
    Floats totals = {};
    for (int64_t j = 0; j < end; j += kLanes) {
        Floats weight = exponential(load(scores + j) - top);
        store(scores + j, weight);
        totals += weight;
    }
    return 1.0f / sum(totals);
}

template <class T>
struct Decode {
    const T *q, *k, *v;  // [R, H, D], [R, K, D], [R, K, D]
    int64_t q_step, k_step, v_step;
    const T *prompt_keys, *prompt_values;  // [B, K, P, D]
    int64_t prompt_room;
    T *own_keys, *own_values;  // [R, K, T, D]
    int64_t own_room;
    const int64_t *prompt_length, *own_length;  // [B], [R] before this token
    const Task* tasks;
    const int64_t* row_of;  // the rows of task 0, then those of task 1, ...
    int64_t count, prompts, rows, heads, key_heads;
    float scale;
    T* out;  // [R, H, D]

    bool fits() const {
        for (int64_t b = 0; b < prompts; b++)
            if (!within(prompt_length[b], 0, prompt_room)) return false;
        for (int64_t r = 0; r < rows; r++)
            if (!within(own_length[r], 1, own_room) || !within(row_of[r], 1, rows)) return false;
        for (int64_t t = 0; t < count; t++)
            if (!within(tasks[t].prompt, 1, prompts) || !within(tasks[t].first, tasks[t].end - tasks[t].first, rows))
                return false;
        return true;
    }
};

// Attention of some rows of one prompt in one key head, which `per` query heads share. The prompt's keys and values are
// read once for all of them.
template <class T, int V>
void attend(const Decode<T>& d, const Task& task, int64_t h, std::vector<float>& room) {
    constexpr int64_t D = V * kLanes;
    int64_t per = d.heads / d.key_heads, rows = task.end - task.first, many = rows * per, longest = 0;
    for (int64_t i = task.first; i < task.end; i++) longest = std::max(longest, d.own_length[d.row_of[i]] + 1);
    int64_t length = d.prompt_length[task.prompt];
    int64_t step = (length + longest + kLanes - 1) / kLanes * kLanes;
    room.resize(std::max<size_t>(room.size(), many * (2 * D + step + 1)));
    float *mixed = room.data(), *weights = mixed + many * D, *shares = weights + many * step;
    T* queries = reinterpret_cast<T*>(shares + many);  // only copied in and out, so the type does not matter
    std::fill(mixed, weights, 0.0f);
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = d.row_of[task.first + i], at = ((row * d.key_heads + h) * d.own_room + d.own_length[row]) * D;
        std::copy_n(d.q + row * d.q_step + h * per * D, per * D, queries + i * per * D);
        std::copy_n(d.k + row * d.k_step + h * D, D, d.own_keys + at);
        std::copy_n(d.v + row * d.v_step + h * D, D, d.own_values + at);
    }
    int64_t prompt_at = (task.prompt * d.key_heads + h) * d.prompt_room * D;
    score<T, V>(d.prompt_keys + prompt_at, length, queries, many, d.scale, weights, step);
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = d.row_of[task.first + i], own = d.own_length[row] + 1;
        const T* keys = d.own_keys + (row * d.key_heads + h) * d.own_room * D;
        score<T, V>(keys, own, queries + i * per * D, per, d.scale, weights + i * per * step + length, step);
        for (int64_t x = i * per; x < (i + 1) * per; x++) shares[x] = exp_and_share(weights + x * step, length + own);
    }
    add_weighted<T, V>(d.prompt_values + prompt_at, length, weights, step, many, mixed);
    for (int64_t i = 0; i < rows; i++) {
        int64_t row = d.row_of[task.first + i];
        const T* values = d.own_values + (row * d.key_heads + h) * d.own_room * D;
        add_weighted<T, V>(values, d.own_length[row] + 1, weights + i * per * step + length, step, per,
                           mixed + i * per * D);
        for (int64_t x = 0; x < per * D; x += kLanes)
            store(d.out + (row * d.heads + h * per) * D + x, load(mixed + i * per * D + x) * shares[i * per + x / D]);
    }
}

template <class T, int V>
void decode_all(const Decode<T>& d, int threads) {
#pragma omp parallel num_threads(std::max<int64_t>(1, std::min<int64_t>(threads, d.count * d.key_heads)))
    {
        std::vector<float> room;
#pragma omp for schedule(static) collapse(2)
        for (int64_t t = 0; t < d.count; t++)
            for (int64_t h = 0; h < d.key_heads; h++) attend<T, V>(d, d.tasks[t], h, room);
    }
}

template <class T>
int decode(const Decode<T>& d, int64_t size, int threads) {
    return d.fits() && for_head_size(size, [&](auto v) { decode_all<T, decltype(v)::value>(d, threads); });
}

// --- attention of prompts ---------------------------------------------------------------------------------

constexpr int kRows = kSums / 2;       // query rows scored together, against two vectors of keys
constexpr int64_t kPanel = 2 * kLanes;  // keys that are stored side by side
constexpr int64_t kQueries = 128;      // tokens of a prompt that one thread processes

template <class T>
struct Prompts {
    const T* q;  // [N, H, D]
    int64_t q_step;
    const T *keys, *values;  // [B, K, P, D]
    int64_t room;
    const int64_t *begin, *count, *first;  // [B]: start and number of a prompt's queries in q, position of the first
    int64_t prompts, queries, heads, key_heads;
    float scale;
    T* out;  // [N, H, D]

    bool fits() const {
        for (int64_t b = 0; b < prompts; b++)
            if (!within(begin[b], count[b], queries) || !within(first[b], count[b], room)) return false;
        return true;
    }
};

// scores[r][j] = query r . key j; keys are stored in panels, [D, kPanel] each
inline void score_panels(const float* queries, const float* panels, int64_t size, int64_t end, float* scores,
                         int64_t step) {
    for (int64_t j = 0; j < end; j += kPanel, panels += size * kPanel) {
        Floats found[kRows][2] = {};
        for (int64_t d = 0; d < size; d++) {
            Floats left = load(panels + d * kPanel), right = load(panels + d * kPanel + kLanes);
            for (int r = 0; r < kRows; r++) {
                found[r][0] += left * queries[r * size + d];
                found[r][1] += right * queries[r * size + d];
            }
        }
        for (int r = 0; r < kRows; r++) {
            store(scores + r * step + j, found[r][0]);
            store(scores + r * step + j + kLanes, found[r][1]);
        }
    }
}

// Causal attention of some tokens of a prompt in one key head, which `per` query heads share.
template <class T, int V>
void attend_block(const Prompts<T>& p, int64_t b, int64_t h, int64_t from, std::vector<float>& room) {
    constexpr int64_t D = V * kLanes;
    constexpr int kMixed = std::min(kRows, std::max(1, kSums / V));
    static_assert(kRows % kMixed == 0, "groups of rows must end where the rows do");
    int64_t per = p.heads / p.key_heads, to = std::min(from + kQueries, p.count[b]), rows = (to - from) * per;
    int64_t seen = p.first[b] + to, step = (seen + kPanel - 1) / kPanel * kPanel;
    room.resize(std::max<size_t>(room.size(), 2 * step * D + kRows * (2 * D + step)));
    float *panels = room.data(), *values = panels + step * D, *queries = values + step * D;
    float *mixed = queries + kRows * D, *weights = mixed + kRows * D, shares[kRows];
    int64_t at = (b * p.key_heads + h) * p.room * D;
    for (int64_t j = 0; j < step; j++) {
        float* column = panels + j / kPanel * kPanel * D + j % kPanel;
        for (int64_t i = 0; i < D; i += kLanes) {
            Floats key = j < seen ? load(p.keys + at + j * D + i) : Floats{};
            for (int x = 0; x < kLanes; x++) column[(i + x) * kPanel] = key[x];
            store(values + j * D + i, j < seen ? load(p.values + at + j * D + i) : Floats{});
        }
    }
    for (int64_t begin = 0; begin < rows; begin += kRows) {
        int64_t some = std::min<int64_t>(kRows, rows - begin);
        int64_t end = p.first[b] + from + (begin + some - 1) / per + 1;
        auto place = [&](int64_t r) {  // returns the token and column of a row
            return std::pair(p.begin[b] + from + (begin + r) / per, (h * per + (begin + r) % per) * D);
        };
        for (int64_t r = 0; r < some; r++) {
            auto [token, column] = place(r);
            for (int64_t i = 0; i < D; i += kLanes)
                store(queries + r * D + i, load(p.q + token * p.q_step + column + i) * p.scale);
        }
        score_panels(queries, panels, D, end, weights, step);
        for (int64_t r = 0; r < some; r++) {
            int64_t own = p.first[b] + from + (begin + r) / per + 1;
            std::fill(weights + r * step + own, weights + r * step + end, -1e30f);
            shares[r] = exp_and_share(weights + r * step, end);
        }
        std::fill(mixed, mixed + kRows * D, 0.0f);
        for (int64_t r = 0; r < some; r += kMixed)
            add_weighted_some<float, V, kMixed>(values, end, weights + r * step, step, mixed + r * D);
        for (int64_t r = 0; r < some; r++) {
            auto [token, column] = place(r);
            for (int64_t i = 0; i < D; i += kLanes)
                store(p.out + token * p.heads * D + column + i, load(mixed + r * D + i) * shares[r]);
        }
    }
}

struct Block {
    int64_t prompt, from;
};

template <class T, int V>
void prefill_all(const Prompts<T>& p, int threads) {
    std::vector<Block> blocks;
    for (int64_t b = 0; b < p.prompts; b++)
        for (int64_t from = 0; from < p.count[b]; from += kQueries) blocks.push_back({b, from});
    int64_t count = static_cast<int64_t>(blocks.size());
#pragma omp parallel num_threads(threads)
    {
        std::vector<float> room;
#pragma omp for schedule(dynamic, 1) collapse(2)
        for (int64_t i = 0; i < count; i++)
            for (int64_t h = 0; h < p.key_heads; h++)
                attend_block<T, V>(p, blocks[i].prompt, h, blocks[i].from, room);
    }
}

template <class T>
int prefill(const Prompts<T>& p, int64_t size, int threads) {
    return p.fits() && for_head_size(size, [&](auto v) { prefill_all<T, decltype(v)::value>(p, threads); });
}

// --- drawing tokens ---------------------------------------------------------------------------------------

// top_R = the largest score of each row; sums_RC = sums of exp(score - top) over chunks of the vocabulary.
template <class T>
void chunk_sums(const T* scores, int64_t step, int64_t rows, int64_t width, int64_t chunk, float* top_R,
                float* sums_RC, int threads) {
    constexpr float kLeast = -87.0f;  // smaller exponents count as 0
    int64_t chunks = (width + chunk - 1) / chunk;
    std::vector<float> top_RC(rows * chunks);
#pragma omp parallel num_threads(helpers(rows * width, threads))
    {
#pragma omp for schedule(static) collapse(2)
        for (int64_t n = 0; n < rows; n++)
            for (int64_t c = 0; c < chunks; c++) {
                const T* from = scores + n * step + c * chunk;
                int64_t end = std::min(chunk, width - c * chunk);
                auto read = [&](int64_t i) {
                    Floats found = load(from + i, end - i);
                    if (end - i >= kLanes) return found;
                    float lanes[kLanes];
                    store(lanes, found);
                    std::fill(lanes + end - i, lanes + kLanes, -__builtin_inff());
                    return load(lanes);
                };
                Floats most = read(0);
                for (int64_t i = kLanes; i < end; i += kLanes) {
                    most = larger(most, read(i));
                }
                float top = std::max(largest(most), -1e30f);
                Floats total = {};
                for (int64_t i = 0; i < end; i += kLanes) {
                    Floats below = read(i) - top, weight = exponential(below);
                    total += unless_below(below, kLeast, weight);
                }
                top_RC[n * chunks + c] = top;
                sums_RC[n * chunks + c] = sum(total);
            }
#pragma omp for schedule(static)
        for (int64_t n = 0; n < rows; n++) {
            const float* tops = top_RC.data() + n * chunks;
            float top = *std::max_element(tops, tops + chunks);
            top_R[n] = top;
            for (int64_t c = 0; c < chunks; c++) {
                float below = tops[c] - top;
                sums_RC[n * chunks + c] *= below < kLeast ? 0.0f : __builtin_expf(below);
            }
        }
    }
}

}  // namespace

#define FOR_TYPE(T, NAME)                                                                                          \
    void norm_##NAME(const T* x, int64_t step, const T* weight, float eps, int64_t rows, int64_t width, T* out,    \
                     float* inverse, int threads) {                                                                \
        norm(x, step, weight, eps, rows, width, out, inverse, threads);                                            \
    }                                                                                                              \
    void norm_back_##NAME(const T* x, int64_t step, const T* weight, const float* inverse, const T* dy,            \
                          int64_t dy_step, int64_t rows, int64_t width, T* dx, int threads) {                      \
        norm_back(x, step, weight, inverse, dy, dy_step, rows, width, dx, threads);                                \
    }                                                                                                              \
    void swiglu_##NAME(const T* joint, int64_t rows, int64_t width, T* out, int threads) {                         \
        swiglu(joint, rows, width, out, threads);                                                                  \
    }                                                                                                              \
    void swiglu_back_##NAME(const T* joint, const T* dy, int64_t dy_step, int64_t rows, int64_t width, T* out,     \
                            int threads) {                                                                         \
        swiglu_back(joint, dy, dy_step, rows, width, out, threads);                                                \
    }                                                                                                              \
    void rotate_##NAME(const T* x, int64_t step, const T* cos, const T* sin, int64_t angle_step, float sign,       \
                       int64_t rows, int64_t heads, int64_t half, T* out, int threads) {                           \
        rotate(x, step, cos, sin, angle_step, sign, rows, heads, half, out, threads);                              \
    }                                                                                                              \
    void low_rank_##NAME(const T* x, int64_t rows, int64_t inputs, const float* down, int64_t padded,              \
                         const float* up, const Part* parts, int64_t count, T* y, int64_t outputs, int threads) {  \
        low_rank(x, rows, inputs, down, padded, up, parts, count, y, outputs, threads);                            \
    }                                                                                                              \
    int decode_##NAME(const T* q, const T* k, const T* v, int64_t q_step, int64_t k_step, int64_t v_step,          \
                      const T* prompt_keys, const T* prompt_values, int64_t prompt_room, T* own_keys,              \
                      T* own_values, int64_t own_room, const int64_t* prompt_length, const int64_t* own_length,    \
                      const Task* tasks, const int64_t* row_of, int64_t count, int64_t prompts, int64_t rows,      \
                      int64_t heads, int64_t key_heads, int64_t size, float scale, T* out, int threads) {          \
        return decode<T>({q, k, v, q_step, k_step, v_step, prompt_keys, prompt_values, prompt_room, own_keys,      \
                          own_values, own_room, prompt_length, own_length, tasks, row_of, count, prompts, rows,    \
                          heads, key_heads, scale, out},                                                           \
                         size, threads);                                                                           \
    }                                                                                                              \
    int prefill_##NAME(const T* q, int64_t q_step, const T* keys, const T* values, int64_t room,                   \
                       const int64_t* begin, const int64_t* count, const int64_t* first, int64_t prompts,          \
                       int64_t queries, int64_t heads, int64_t key_heads, int64_t size, float scale, T* out,       \
                       int threads) {                                                                              \
        return prefill<T>(                                                                                         \
            {q, q_step, keys, values, room, begin, count, first, prompts, queries, heads, key_heads, scale, out},  \
            size, threads);                                                                                        \
    }                                                                                                              \
    void chunk_sums_##NAME(const T* scores, int64_t step, int64_t rows, int64_t width, int64_t chunk, float* top,  \
                           float* sums, int threads) {                                                             \
        chunk_sums(scores, step, rows, width, chunk, top, sums, threads);                                          \
    }

extern "C" {
FOR_TYPE(float, float32)
FOR_TYPE(bfloat16, bfloat16)
}
