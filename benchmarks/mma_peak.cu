// How fast mma.sync.m16n8k16 of f16 runs where nothing else is to be done.
#include <cstdint>

constexpr int PRODUCTS = 8;

extern "C" __global__ void __launch_bounds__(256) mma_peak(float *out, uint64_t iterations) {
  uint32_t a[4], b[2];
  float sums[PRODUCTS][4] = {};
  for (int i = 0; i < 4; ++i) a[i] = threadIdx.x + i;
  for (int i = 0; i < 2; ++i) b[i] = threadIdx.x * 3 + i;
  for (uint64_t step = 0; step < iterations; ++step) {
#pragma unroll
    for (int p = 0; p < PRODUCTS; ++p) {
      asm volatile(
          "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
          "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
          : "+f"(sums[p][0]), "+f"(sums[p][1]), "+f"(sums[p][2]), "+f"(sums[p][3])
          : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b[0]), "r"(b[1]));
    }
  }
  float total = 0;
  for (int p = 0; p < PRODUCTS; ++p)
    for (int i = 0; i < 4; ++i) total += sums[p][i];
  if (total == -1.0f) *out = total;
}
