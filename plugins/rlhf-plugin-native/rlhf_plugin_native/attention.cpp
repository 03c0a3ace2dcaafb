// Attention of one new position to those before it. Queries and what is returned: [rows, HEADS, GROUP, WIDTH]; keys and
// values: [rows, HEADS, length, WIDTH], numbers of a position side by side. Each key and value is read once for all
// queries of its group, and asked for ahead: one position of few queries waits for memory.
#include <cfloat>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <vector>

#if BITS == 16  // bfloat16
using Number = uint16_t;
static inline float wide(Number x) {
    const uint32_t bits = uint32_t(x) << 16;
    float value;
    std::memcpy(&value, &bits, 4);
    return value;
}
static inline Number narrow(float x) {
    uint32_t bits;
    std::memcpy(&bits, &x, 4);
    return (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
}
#else
using Number = float;
static inline float wide(Number x) { return x; }
static inline Number narrow(float x) { return x; }
#endif

static const int AHEAD = 8;

static inline void fetch(const Number *position) {
    for (unsigned byte = 0; byte < WIDTH * sizeof(Number); byte += 64) __builtin_prefetch((const char *)position + byte);
}

// exp(x) of x <= 0, to 2e-7 of it, in a form that the compiler vectorises: 2^n exp(r) with |r| <= log(2) / 2.
static inline float exponential(float x) {
    x = x < -87.f ? -87.f : x;
    const float n = std::floor(x * 1.44269504f + .5f), r = x - n * .693145752f - n * 1.42860677e-6f;
    const float sum = 1 + r * (1 + r * (1 / 2.f + r * (1 / 6.f + r * (1 / 24.f + r * (1 / 120.f + r / 720.f)))));
    const int32_t bits = (int32_t(n) + 127) << 23;
    float power;
    std::memcpy(&power, &bits, 4);
    return sum * power;
}

// sizes: rows, length, three strides of the keys, three of the values, one of what is visible ([rows, length], or null).
extern "C" void attend(
    const Number *queries, const Number *keys, const Number *values, Number *out, const uint8_t *visible,
    const int64_t *sizes, float scale, int threads
) {
    const int64_t rows = sizes[0], length = sizes[1], *key_stride = sizes + 2, *value_stride = sizes + 5;
    #pragma omp parallel num_threads(threads)
    {
        std::vector<float> weights(GROUP * length);
        #pragma omp for nowait
        for (int64_t i = 0; i < rows * HEADS; i++) {
            const int64_t row = i / HEADS, head = i % HEADS;
            const Number *key = keys + row * key_stride[0] + head * key_stride[1];
            const Number *value = values + row * value_stride[0] + head * value_stride[1];
            float query[GROUP][WIDTH], sums[GROUP][WIDTH] = {}, total[GROUP];
            for (int g = 0; g < GROUP; g++)
                for (int d = 0; d < WIDTH; d++) query[g][d] = wide(queries[(i * GROUP + g) * WIDTH + d]) * scale;
            for (int64_t l = 0; l < length; l++, key += key_stride[2]) {
                fetch(key + AHEAD * key_stride[2]);
                const bool seen = !visible || visible[row * sizes[8] + l];
                for (int g = 0; g < GROUP; g++) {
                    float score = 0;
                    for (int d = 0; d < WIDTH; d++) score += query[g][d] * wide(key[d]);
                    weights[g * length + l] = seen ? score : -FLT_MAX;
                }
            }
            for (int g = 0; g < GROUP; g++) {
                float *weight = &weights[g * length], most = -FLT_MAX, sum = 0;
                for (int64_t l = 0; l < length; l++) most = weight[l] > most ? weight[l] : most;
                for (int64_t l = 0; l < length; l++) sum += weight[l] = exponential(weight[l] - most);
                for (int64_t l = 0; l < length; l++) weight[l] = wide(narrow(weight[l]));  // as torch rounds them
                total[g] = sum;
            }
            for (int64_t l = 0; l < length; l++, value += value_stride[2]) {
                fetch(value + AHEAD * value_stride[2]);
                for (int g = 0; g < GROUP; g++)
                    for (int d = 0; d < WIDTH; d++) sums[g][d] += weights[g * length + l] * wide(value[d]);
            }
            for (int g = 0; g < GROUP; g++)
                for (int d = 0; d < WIDTH; d++) out[(i * GROUP + g) * WIDTH + d] = narrow(sums[g][d] / total[g]);
        }
    }
}
