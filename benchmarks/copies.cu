// One warp, one cp.async a launch; launches follow the lines of the table given as argument:
//   width mode  32 global byte offsets  32 shared byte offsets
// mode: 0 is cp.async.cg (16 bytes only), 1 cp.async.ca, 2 cp.async.cg with a source size, which
// stands in the top bits of a lane's global offset (offset + size * 2^24). A shared offset below
// zero switches the lane off. The copied bytes are compared with the global buffer.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>
constexpr int GLOBAL_BYTES = 1 << 20, SHARED_BYTES = 65536;
template <int W, int MODE>
__global__ void copy(const unsigned char* source, const int* table, unsigned char* out) {
  extern __shared__ __align__(1024) unsigned char memory[];
  for (int i = threadIdx.x; i < SHARED_BYTES / 4; i += 32) ((int*)memory)[i] = -1;
  __syncwarp();
  int from = table[threadIdx.x], to = table[32 + threadIdx.x];
  int size = from >> 24;
  from &= (1 << 24) - 1;
  unsigned at = (unsigned)__cvta_generic_to_shared(memory) + (to < 0 ? 0 : to);
  const unsigned char* p = source + from;
  if (to >= 0) {
    if (MODE == 0) asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(at), "l"(p) : "memory");
    if (MODE == 1) asm volatile("cp.async.ca.shared.global [%0], [%1], %2;" ::"r"(at), "l"(p), "n"(W) : "memory");
    if (MODE == 2) asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(at), "l"(p), "r"(size) : "memory");
  }
  asm volatile("cp.async.wait_all;" ::: "memory");
  __syncwarp();
  if (to >= 0)
    for (int i = 0; i < W; ++i) out[threadIdx.x * 16 + i] = memory[to + i];
}
#define CHECK(call)                                                                      \
  if (cudaError_t e = call) { fprintf(stderr, "%s: %s\n", #call, cudaGetErrorString(e)); return 1; }
template <int W, int MODE> int launch(const unsigned char* s, const int* t, unsigned char* o) {
  CHECK(cudaFuncSetAttribute(copy<W, MODE>, cudaFuncAttributeMaxDynamicSharedMemorySize, SHARED_BYTES));
  copy<W, MODE><<<1, 32, SHARED_BYTES>>>(s, t, o);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  return 0;
}
int main(int, char** argv) {
  FILE* file = fopen(argv[1], "r");
  if (!file) return 2;
  std::vector<unsigned char> data(GLOBAL_BYTES);
  srand(1);
  for (auto& byte : data) byte = rand() >> 7;
  unsigned char *source, *out, back[512];
  int *table, host[64], width, mode, number = 0, wrong = 0;
  CHECK(cudaMalloc(&source, GLOBAL_BYTES));
  CHECK(cudaMalloc(&table, sizeof host));
  CHECK(cudaMalloc(&out, sizeof back));
  CHECK(cudaMemcpy(source, data.data(), GLOBAL_BYTES, cudaMemcpyHostToDevice));
  for (; fscanf(file, "%d %d", &width, &mode) == 2; ++number) {
    for (int& x : host) if (fscanf(file, "%d", &x) != 1) return 2;
    CHECK(cudaMemcpy(table, host, sizeof host, cudaMemcpyHostToDevice));
    int failed = 2;
    if (mode == 0 && width == 16) failed = launch<16, 0>(source, table, out);
    if (mode == 1 && width == 16) failed = launch<16, 1>(source, table, out);
    if (mode == 1 && width == 8) failed = launch<8, 1>(source, table, out);
    if (mode == 1 && width == 4) failed = launch<4, 1>(source, table, out);
    if (mode == 2 && width == 16) failed = launch<16, 2>(source, table, out);
    if (failed) { fprintf(stderr, "case %d was not launched\n", number); return 3; }
    CHECK(cudaMemcpy(back, out, sizeof back, cudaMemcpyDeviceToHost));
    for (int lane = 0; lane < 32; ++lane) {
      int from = host[lane] & ((1 << 24) - 1), size = mode == 2 ? host[lane] >> 24 : width;
      bool shared_twice = false;  // two lanes may write one place: then either wins
      for (int other = 0; other < 32; ++other)
        shared_twice |= other != lane && host[32 + other] >= 0 && abs(host[32 + other] - host[32 + lane]) < 16;
      if (host[32 + lane] < 0 || (shared_twice && width == 16)) continue;
      for (int i = 0; i < width; ++i) wrong += back[lane * 16 + i] != (i < size ? data[from + i] : 0);
    }
  }
  fprintf(stderr, "%d cases, %d wrong bytes\n", number, wrong);
  return wrong != 0;
}
