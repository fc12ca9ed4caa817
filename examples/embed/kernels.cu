// A C library as a program may have one: a kernel, and a launcher that takes addresses, numbers and a stream.
#include <cuda_runtime.h>

static __global__ void scale_add_kernel(float *out, const float *x, float scale, float add, int n) {
    int i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i < n) out[i] = x[i] * scale + add;
}

// out = x * scale + add, for n floats. Returns the launch's cudaError_t; the kernel may still be running.
extern "C" int scale_add(float *out, const float *x, float scale, float add, int n, cudaStream_t stream) {
    const int threads = 256;
    scale_add_kernel<<<(n + threads - 1) / threads, threads, 0, stream>>>(out, x, scale, add, n);
    return cudaGetLastError();
}

extern "C" const char *error_name(int error) { return cudaGetErrorName((cudaError_t)error); }
