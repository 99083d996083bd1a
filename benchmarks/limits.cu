// Kernels that do nothing but read, or copy, so that nothing that computes can be faster.
//
// A block takes a chunk of blockDim.x * N vectors of 16 bytes, and then the chunk gridDim.x further.
// The N loads of a thread stand before anything that needs them, so that all are on their way.
// A grid of as many blocks as chunks has no second chunk; a smaller one stays on its processors.
#include <cuda_runtime.h>

template <bool kStream>
__device__ __forceinline__ uint4 load(const uint4* at) {
  uint4 v;
  if (kStream) {
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
  } else {
    asm volatile("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(at)
                 : "memory");
  }
  return v;
}

template <int N, bool kStream>
__device__ __forceinline__ void read(const uint4* a, unsigned long long count, unsigned* sink) {
  const unsigned long long chunk = (unsigned long long)blockDim.x * N;
  uint4 all = make_uint4(0, 0, 0, 0);
  for (unsigned long long first = blockIdx.x * chunk; first < count; first += gridDim.x * chunk) {
    const uint4* mine = a + first + threadIdx.x;
    uint4 v[N];
    if (first + chunk <= count) {
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = load<kStream>(mine + i * blockDim.x);
    } else {
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const bool in = first + threadIdx.x + (unsigned long long)i * blockDim.x < count;
        v[i] = in ? load<kStream>(mine + i * blockDim.x) : make_uint4(0, 0, 0, 0);
      }
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      all.x ^= v[i].x;
      all.y ^= v[i].y;
      all.z ^= v[i].z;
      all.w ^= v[i].w;
    }
  }
  // Threads that meet this value by chance write it; the compiler cannot leave out a load.
  const unsigned folded = all.x ^ all.y ^ all.z ^ all.w;
  if (folded == 0x9e3779b9u) *sink = folded;
}

template <int N, bool kStream>
__device__ __forceinline__ void copy(const uint4* a, unsigned long long count, uint4* b) {
  const unsigned long long chunk = (unsigned long long)blockDim.x * N;
  for (unsigned long long first = blockIdx.x * chunk; first < count; first += gridDim.x * chunk) {
    const unsigned long long mine = first + threadIdx.x;
    if (first + chunk <= count) {
      uint4 v[N];
#pragma unroll
      for (int i = 0; i < N; ++i) v[i] = load<kStream>(a + mine + i * blockDim.x);
#pragma unroll
      for (int i = 0; i < N; ++i) {
        if (kStream) {
          __stcs(b + mine + i * blockDim.x, v[i]);
        } else {
          b[mine + i * blockDim.x] = v[i];
        }
      }
    } else {
      for (unsigned long long at = mine; at < count; at += blockDim.x) b[at] = a[at];
    }
  }
}

#define KERNELS(N)                                                                               \
  extern "C" __global__ void read_##N(const uint4* a, unsigned long long n, unsigned* sink) {    \
    read<N, false>(a, n, sink);                                                                  \
  }                                                                                              \
  extern "C" __global__ void read_stream_##N(const uint4* a, unsigned long long n, unsigned* s) { \
    read<N, true>(a, n, s);                                                                      \
  }                                                                                              \
  extern "C" __global__ void copy_##N(const uint4* a, unsigned long long n, uint4* b) {          \
    copy<N, false>(a, n, b);                                                                     \
  }                                                                                              \
  extern "C" __global__ void copy_stream_##N(const uint4* a, unsigned long long n, uint4* b) {   \
    copy<N, true>(a, n, b);                                                                      \
  }

KERNELS(1)
KERNELS(2)
KERNELS(4)
KERNELS(8)
KERNELS(16)
