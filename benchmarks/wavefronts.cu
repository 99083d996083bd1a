// One warp, one access of shared memory. A byte offset below zero switches its lane off.
// Inline PTX keeps the width as it is written here.
#include <cstdio>
#include <cstdlib>
template <int W, bool STORE> __global__ void access(const int* offsets, int* out) {
  extern __shared__ __align__(1024) unsigned char memory[];
  int offset = offsets[threadIdx.x];
  unsigned at = (unsigned)__cvta_generic_to_shared(memory) + (offset < 0 ? 0 : offset);
  int a = threadIdx.x, b = 1, c = 2, d = 3;
  unsigned short h = a;
  if (offset >= 0) {
    if (STORE) {
      if (W == 1) asm volatile("st.shared.u8 [%0], %1;" ::"r"(at), "r"(a));
      if (W == 2) asm volatile("st.shared.u16 [%0], %1;" ::"r"(at), "h"(h));
      if (W == 4) asm volatile("st.shared.u32 [%0], %1;" ::"r"(at), "r"(a));
      if (W == 8) asm volatile("st.shared.v2.u32 [%0], {%1, %2};" ::"r"(at), "r"(a), "r"(b));
      if (W == 16)
        asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(a), "r"(b), "r"(c), "r"(d));
    } else {
      if (W == 1) asm volatile("ld.shared.u8 %0, [%1];" : "=r"(a) : "r"(at));
      if (W == 2) asm volatile("ld.shared.u16 %0, [%1];" : "=h"(h) : "r"(at));
      if (W == 4) asm volatile("ld.shared.u32 %0, [%1];" : "=r"(a) : "r"(at));
      if (W == 8) asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(a), "=r"(b) : "r"(at));
      if (W == 16)
        asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(a), "=r"(b), "=r"(c), "=r"(d) : "r"(at));
    }
  }
  out[threadIdx.x] = a + b + c + d + h;
}
int main(int, char** argv) {
  FILE* file = fopen(argv[1], "r");
  int width, store, host[32], *offsets, *out;
  cudaMalloc(&offsets, sizeof host);
  cudaMalloc(&out, sizeof host);
  while (fscanf(file, "%d %d", &width, &store) == 2) {
    for (int& offset : host) if (fscanf(file, "%d", &offset) != 1) return 2;
    cudaMemcpy(offsets, host, sizeof host, cudaMemcpyHostToDevice);
#define CASE(W) \
  if (width == W) store ? access<W, true><<<1, 32, 32768>>>(offsets, out) : access<W, false><<<1, 32, 32768>>>(offsets, out);
    CASE(1) CASE(2) CASE(4) CASE(8) CASE(16)
  }
  cudaError_t error = cudaDeviceSynchronize();
  if (error) fprintf(stderr, "%s\n", cudaGetErrorString(error));
  return error != 0;
}
