// What is left of the encoder between its matrix products, fused into five kernels.
//
// REAL, float or __half, is how activations are stored; all arithmetic is in float. A row is a token, and the rows of
// one sentence follow each other: sentence s has the rows starts[s] to starts[s + 1]. Biases, and `norm` (384 scales,
// then 384 offsets), are float. A warp has 32 lanes, and so has a head: lane d holds its feature d.

#include <cuda_fp16.h>

constexpr int WARP = 32, HEADS = 12, WIDTH = HEADS * WARP, HIDDEN = 4 * WIDTH;
constexpr int ROWS = 4;      // of a block of `embed` or `add_norm`: a warp each
constexpr int QUERIES = 8;   // of a block of `attention`: a warp each
constexpr int MINE = WIDTH / WARP;  // features of a row that one lane holds
constexpr unsigned ALL = 0xffffffff;
constexpr float LOWEST = -3e38f;  // e to the power of it is 0

__device__ float sum_over_warp(float x) {
    for (int far = WARP / 2; far; far /= 2) x += __shfl_xor_sync(ALL, x, far);
    return x;
}

__device__ float max_over_warp(float x) {
    for (int far = WARP / 2; far; far /= 2) x = fmaxf(x, __shfl_xor_sync(ALL, x, far));
    return x;
}

// Layer normalization of the row that a warp holds.
__device__ void store_normalized(const float (&x)[MINE], const float* norm, REAL* out) {
    float sum = 0, squares = 0;
    for (int i = 0; i < MINE; ++i) sum += x[i];
    const float mean = sum_over_warp(sum) / WIDTH;
    for (int i = 0; i < MINE; ++i) squares += (x[i] - mean) * (x[i] - mean);
    const float scale = rsqrtf(sum_over_warp(squares) / WIDTH + 1e-12f);
    for (int i = 0; i < MINE; ++i) {
        const int at = i * WARP + threadIdx.x;
        out[at] = (x[i] - mean) * scale * norm[at] + norm[WIDTH + at];
    }
}

// out = normalized(words[tokens.x] + places[tokens.y]).  Grid (rows / ROWS), block (WARP, ROWS).
extern "C" __global__ void embed(int rows, const int2* tokens, const REAL* words, const REAL* places, const float* norm,
                                 REAL* out) {
    const int row = blockIdx.x * ROWS + threadIdx.y;
    if (row >= rows) return;
    const REAL* word = words + tokens[row].x * WIDTH;
    const REAL* place = places + tokens[row].y * WIDTH;
    float x[MINE];
    for (int i = 0; i < MINE; ++i) x[i] = float(word[i * WARP + threadIdx.x]) + float(place[i * WARP + threadIdx.x]);
    store_normalized(x, norm, out + row * WIDTH);
}

// x = normalized(x + bias + residual).  Grid (rows / ROWS), block (WARP, ROWS).
extern "C" __global__ void add_norm(int rows, const float* bias, const REAL* residual, const float* norm, REAL* x) {
    const int row = blockIdx.x * ROWS + threadIdx.y;
    if (row >= rows) return;
    float sum[MINE];
    for (int i = 0; i < MINE; ++i) {
        const int feature = i * WARP + threadIdx.x, at = row * WIDTH + feature;
        sum[i] = float(x[at]) + bias[feature] + float(residual[at]);
    }
    store_normalized(sum, norm, x + row * WIDTH);
}

// x = gelu(x + bias), by the error function.  Grid (rows, HIDDEN / WIDTH), block (WIDTH).
extern "C" __global__ void add_gelu(const float* bias, REAL* x) {
    const int feature = blockIdx.y * WIDTH + threadIdx.x, at = blockIdx.x * HIDDEN + feature;
    const float sum = float(x[at]) + bias[feature];
    x[at] = 0.5f * sum * (1 + erff(sum * 0.70710678f));
}

// Each query mixes the values of its own sentence. A row of qkv is 384 queries, 384 keys and 384 values, without their
// bias. Keys are taken a warp's width at a time, a lane each; the softmax is carried from one lot to the next.
// Grid (longest sentence / QUERIES, HEADS, sentences), block (WARP, QUERIES).
extern "C" __global__ void attention(const int* starts, const float* bias, const REAL* qkv, REAL* out) {
    __shared__ float keys[WARP][WARP + 1];  // 1 more, so that lanes which read a column each use a bank each
    __shared__ float values[WARP][WARP];
    const int lane = threadIdx.x, feature = blockIdx.y * WARP + lane;
    const int first = starts[blockIdx.z], end = starts[blockIdx.z + 1];
    const int row = first + blockIdx.x * QUERIES + threadIdx.y;
    if (row - threadIdx.y >= end) return;  // the whole block: its sentence is shorter than the longest
    const bool real = row < end;           // the same for all lanes of a warp
    const float query = real ? (float(qkv[row * 3 * WIDTH + feature]) + bias[feature]) * rsqrtf(WARP) : 0;
    float highest = LOWEST, total = 0, mixed = 0;
    for (int lot = first; lot < end; lot += WARP) {
        const int count = min(WARP, end - lot);
        __syncthreads();  // the lot before has been used
        for (int key = threadIdx.y; key < count; key += QUERIES) {
            const REAL* from = qkv + (lot + key) * 3 * WIDTH + feature;
            keys[key][lane] = float(from[WIDTH]) + bias[WIDTH + feature];
            values[key][lane] = float(from[2 * WIDTH]) + bias[2 * WIDTH + feature];
        }
        __syncthreads();
        float score = 0;
        for (int d = 0; d < WARP; ++d) score += __shfl_sync(ALL, query, d) * keys[lane][d];
        if (lane >= count) score = LOWEST;
        const float before = highest;
        highest = fmaxf(before, max_over_warp(score));
        const float weight = expf(score - highest), kept = expf(before - highest);
        total = total * kept + sum_over_warp(weight);
        mixed *= kept;
        for (int key = 0; key < count; ++key) mixed += __shfl_sync(ALL, weight, key) * values[key][lane];
    }
    if (real) out[row * WIDTH + feature] = mixed / total;
}

// out = the mean over each sentence's rows, made a unit vector; rows of out without a sentence are left as they are.
// Grid (rows of out), block (WIDTH).
extern "C" __global__ void pool(const int* starts, const REAL* hidden, float* out) {
    __shared__ float parts[HEADS];
    const int first = starts[blockIdx.x], end = starts[blockIdx.x + 1], feature = threadIdx.x;
    if (first == end) return;
    float mean = 0;
    for (int row = first; row < end; ++row) mean += float(hidden[row * WIDTH + feature]);
    mean /= end - first;
    const float part = sum_over_warp(mean * mean);
    if (feature % WARP == 0) parts[feature / WARP] = part;
    __syncthreads();
    float squares = 0;
    for (int warp = 0; warp < HEADS; ++warp) squares += parts[warp];
    out[blockIdx.x * WIDTH + feature] = mean / fmaxf(sqrtf(squares), 1e-12f);
}
