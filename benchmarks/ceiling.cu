// What mma.sync, ldmatrix and cp.async reach: one product written by hand, C = A @ B^T with f16 in
// and out and f32 sums, and the same loop along K with parts of it left out.
//
// A block multiplies BM x BN in chunks of BK along K, its warps' tiles in steps of 16 along K. The
// multiplications of a step come in pieces: all rows of a warp's tile by 16 of its columns. Chunks
// are copied to shared memory some stages ahead, rows XORed so that no bank is met twice.
//
// Macros, all given on nvcc's command line (benchmarks/ceiling.py):
//   BM BN BK         the block's tile
//   WARPS_M WARPS_N  warps along M and N
//   STAGES           versions of a chunk in shared memory
//   MODE             sum of what the loop does beside mma.sync: 1 ldmatrix, 2 cp.async and its wait,
//                    4 barrier. 7 is a whole product, 0 multiplies registers; only 7 is right.
//   A_MODE           fragments of A: 0 loaded at the head of their step; 1 a step ahead, into a
//                    second set of registers; 2 each in the place of that of the step before, after
//                    its last use
//   B_RING           fragments of B: 0 loaded at the head of their step; 1 a step ahead, into a
//                    second set; n > 1 piece by piece, n - 1 pieces ahead, in n sets
//   MINB             blocks that a multiprocessor shall hold (__launch_bounds__)
//   GROUP            rows of blocks that run together
//   SPREAD           parts in which the copies of a chunk lie between pieces; 0: one for each piece
//   SERP             1: every second piece takes the rows backwards
//   PREFETCH_L2      1: cp.async asks L2 for 128 bytes
#include <cuda_fp16.h>
#include <stdint.h>

#ifndef MODE
#define MODE 7
#endif
#ifndef MINB
#define MINB 1
#endif
#ifndef GROUP
#define GROUP 8
#endif
#ifndef SPREAD
#define SPREAD 0
#endif
#ifndef SERP
#define SERP 0
#endif
#ifndef PREFETCH_L2
#define PREFETCH_L2 0
#endif

constexpr bool LOADS = MODE & 1, COPIES_RUN = MODE & 2, MEETS = MODE & 4;
constexpr int WARPS = WARPS_M * WARPS_N, THREADS = 32 * WARPS;
// Of a warp's tile: fragments of 16 rows, pieces of 16 columns; steps of a chunk.
constexpr int MT = BM / WARPS_M / 16, NT = BN / WARPS_N / 16, KS = BK / 16, PIECES = KS * NT;
constexpr int ROW = BK * 2;  // bytes
constexpr int A_BYTES = BM * ROW, B_BYTES = BN * ROW, STAGE_BYTES = A_BYTES + B_BYTES;
// Copies: 16 bytes a thread, so many rows by all threads together.
constexpr int CHUNKS = BK / 8, ROWS_PASS = THREADS / CHUNKS;
constexpr int A_COPIES = BM / ROWS_PASS, B_COPIES = BN / ROWS_PASS, COPIES = A_COPIES + B_COPIES;
constexpr bool RING = B_RING >= 2;
// The piece before which wait and barrier stand: the first one that loads of the next chunk.
constexpr int FIRST_A = A_MODE == 0 ? PIECES : A_MODE == 1 ? (KS - 1) * NT : PIECES - 1;
constexpr int FIRST_B = RING ? PIECES - (B_RING - 1) : B_RING == 1 ? (KS - 1) * NT : PIECES;
constexpr int ARRIVE = FIRST_A < FIRST_B ? FIRST_A : FIRST_B;
// Where this chunk is still read after the barrier, no copy may go to its version yet.
constexpr bool LAGS = (A_MODE == 1 && RING) || (A_MODE == 2 && B_RING == 1);
constexpr int AHEAD = LAGS ? STAGES - 2 : STAGES - 1;
constexpr int A_SETS = A_MODE == 1 ? 2 : 1, B_SETS = RING ? B_RING : (B_RING == 1 ? 2 * NT : NT);
// Copies lie before the barrier, in so many parts.
constexpr int SLOTS = ARRIVE > 0 ? ARRIVE : 1, PARTS = SPREAD && SPREAD < SLOTS ? SPREAD : SLOTS;
static_assert(AHEAD >= 1 && BM % ROWS_PASS == 0 && BN % ROWS_PASS == 0, "tile");
static_assert(A_MODE != 1 || KS % 2 == 0, "two sets need an even number of steps");
static_assert(B_RING != 1 || KS % 2 == 0, "two sets need an even number of steps");
static_assert(!RING || PIECES % B_RING == 0, "a ring needs its multiple of pieces");

// Where the 16 bytes at column c of a row lie in that row.
__device__ __forceinline__ uint32_t chunk_of(int row, int c) {
  if (BK >= 64) return c ^ (row & 7);
  if (BK == 32) return c ^ ((row >> 1) & 3);
  return c ^ ((row >> 2) & 1);
}

__device__ __forceinline__ void ldsm(uint32_t (&r)[4], uint32_t at) {
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
               : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
               : "r"(at));
}

__device__ __forceinline__ void mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                    uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 "
      "{%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void copy16(uint32_t to, const half* from) {
#if PREFETCH_L2
  asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;\n" ::"r"(to), "l"(from));
#else
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;\n" ::"r"(to), "l"(from));
#endif
}

__device__ __forceinline__ unsigned long long nanoseconds() {
  unsigned long long t;
  asm volatile("mov.u64 %0, %globaltimer;" : "=l"(t));
  return t;
}

// If `times` is there, each block writes its clocks before, in and after the loop, and nanoseconds.
extern "C" __global__ void __launch_bounds__(THREADS, MINB)
    ceiling(const half* __restrict__ A, const half* __restrict__ B, half* __restrict__ C, int M,
            int N, int K, unsigned long long* times) {
  extern __shared__ __align__(1024) unsigned char smem[];
  const int tid = threadIdx.x, lane = tid & 31, warp = tid >> 5;
  const int wm = warp % WARPS_M, wn = warp / WARPS_M;
  const int rows = (M + BM - 1) / BM, cols = (N + BN - 1) / BN;
  const int per = GROUP * cols, group = blockIdx.x / per, first = group * GROUP;
  const int high = min(rows - first, GROUP), in = blockIdx.x % per;
  // The last row and column of tiles end with the matrix: they do work of their neighbours again.
  const int bm = min((first + in % high) * BM, M - BM), bn = min(in / high * BN, N - BN);
  const unsigned long long t0 = nanoseconds();
  const long long c0 = clock64();

  const int crow = tid / CHUNKS, cch = tid % CHUNKS;
  const uint32_t base = (uint32_t)__cvta_generic_to_shared(smem);
  const uint32_t put = base + crow * ROW + chunk_of(crow, cch) * 16;
  const half* from_a = A + (size_t)(bm + crow) * K + cch * 8;
  const half* from_b = B + (size_t)(bn + crow) * K + cch * 8;
  auto one_copy = [&](int i, uint32_t stage_off, const half* a, const half* b) {
    if (i < A_COPIES) {
      copy16(put + stage_off + i * ROWS_PASS * ROW, a + (size_t)i * ROWS_PASS * K);
    } else {
      const int j = i - A_COPIES;
      copy16(put + stage_off + A_BYTES + j * ROWS_PASS * ROW, b + (size_t)j * ROWS_PASS * K);
    }
  };
  auto commit = [] { asm volatile("cp.async.commit_group;\n" ::); };
  auto arrive = [&] {
    if (COPIES_RUN) asm volatile("cp.async.wait_group %0;\n" ::"n"(AHEAD - 1));
    if (MEETS) asm volatile("bar.sync 0;\n" ::: "memory");
  };

  const int arow = wm * (BM / WARPS_M) + (lane & 15), ahi = lane >> 4;
  const int brow = wn * (BN / WARPS_N) + (lane & 7) + ((lane >> 4) << 3), bhi = (lane >> 3) & 1;
  const uint32_t a_at = base + arow * ROW + chunk_of(arow, ahi) * 16;
  const uint32_t b_at = base + A_BYTES + brow * ROW + chunk_of(brow, bhi) * 16;
  float acc[MT][2 * NT][4];
#pragma unroll
  for (int i = 0; i < MT; ++i)
#pragma unroll
    for (int j = 0; j < 2 * NT; ++j)
#pragma unroll
      for (int e = 0; e < 4; ++e) acc[i][j][e] = 0.f;
  uint32_t fa[A_SETS][MT][4], fb[B_SETS][4];
  // Fragments of a step of the chunk that lies at a stage's offset.
  auto load_a = [&](int set, int m, int step, uint32_t off) {
    if (LOADS) ldsm(fa[set][m], (a_at ^ (step << 5)) + off + m * 16 * ROW);
  };
  auto load_b = [&](int set, int n, int step, uint32_t off) {
    if (LOADS) ldsm(fb[set], (b_at ^ (step << 5)) + off + n * 16 * ROW);
  };

  // Before the loop: the first chunks, and the fragments that it expects to be there (or keeps).
  const int chunks = K / BK;
#pragma unroll
  for (int s = 0; s < AHEAD; ++s) {
    if (s < chunks)
#pragma unroll
      for (int i = 0; i < COPIES; ++i)
        one_copy(i, s * STAGE_BYTES, from_a + s * BK, from_b + s * BK);
    commit();
  }
  from_a += AHEAD * BK;
  from_b += AHEAD * BK;
  asm volatile("cp.async.wait_group %0;\n" ::"n"(AHEAD - 1));
  asm volatile("bar.sync 0;\n" ::: "memory");
#pragma unroll
  for (int m = 0; m < MT; ++m)
    for (int s = 0; s < A_SETS; ++s) ldsm(fa[s][m], a_at + m * 16 * ROW);
#pragma unroll
  for (int p = 0; p < B_SETS; ++p)
    ldsm(fb[p], (b_at ^ ((RING ? p / NT : 0) << 5)) + (p % NT) * 16 * ROW);

  uint32_t now = 0, next = STAGE_BYTES % (STAGES * STAGE_BYTES);
  uint32_t write = AHEAD % STAGES * STAGE_BYTES;
  const long long c1 = clock64();
#pragma unroll 1
  for (int chunk = 0; chunk < chunks; ++chunk) {
    const bool copies = COPIES_RUN && chunk + AHEAD < chunks;
#pragma unroll
    for (int ks = 0; ks < KS; ++ks) {
      const bool last_step = ks == KS - 1;
      const uint32_t ahead = last_step ? next : now;  // where the next step's fragments lie
      if (A_MODE == 0)
#pragma unroll
        for (int m = 0; m < MT; ++m) load_a(0, m, ks, now);
      if (B_RING == 0)
#pragma unroll
        for (int n = 0; n < NT; ++n) load_b(n, n, ks, now);
#pragma unroll
      for (int n = 0; n < NT; ++n) {
        const int g = ks * NT + n;
        if (g == ARRIVE) arrive();
        // Fragments ahead.
        if (B_RING == 1) load_b((ks + 1) % 2 * NT + n, n, (ks + 1) % KS, ahead);
        if (RING) {
          const int t = g + B_RING - 1, in_chunk = t % PIECES;
          load_b(t % B_SETS, in_chunk % NT, in_chunk / NT, t < PIECES ? now : next);
        }
        if (A_MODE == 1)
#pragma unroll
          for (int m = 0; m < MT; ++m)
            if (m * NT / MT == n || (m * NT / MT >= NT && n == NT - 1))
              load_a((ks + 1) % 2, m, (ks + 1) % KS, ahead);
        // A share of the copies.
        if (COPIES_RUN) {
#pragma unroll
          for (int p = 0; p < PARTS; ++p)
            if (g == p * SLOTS / PARTS) {
              if (copies)
#pragma unroll
                for (int i = 0; i < COPIES; ++i)
                  if (i * PARTS / COPIES == p) one_copy(i, write, from_a, from_b);
              if (p == PARTS - 1) commit();
            }
        }
        // The products of a piece.
#pragma unroll
        for (int i = 0; i < MT; ++i) {
          const int m = SERP && (n & 1) ? MT - 1 - i : i;
          const int bs = RING ? g % B_SETS : (B_RING == 1 ? ks % 2 * NT + n : n);
          const int as = A_MODE == 1 ? ks % 2 : 0;
          mma(acc[m][2 * n], fa[as][m], fb[bs][0], fb[bs][1]);
          mma(acc[m][2 * n + 1], fa[as][m], fb[bs][2], fb[bs][3]);
          if (A_MODE == 2 && n == NT - 1) load_a(0, m, (ks + 1) % KS, ahead);
        }
      }
    }
    if (ARRIVE == PIECES) arrive();
    now = next;
    next = next == (STAGES - 1) * STAGE_BYTES ? 0 : next + STAGE_BYTES;
    write = write == (STAGES - 1) * STAGE_BYTES ? 0 : write + STAGE_BYTES;
    from_a += BK;
    from_b += BK;
  }
  const long long c2 = clock64();

  // Each thread stores its own pairs, straight to global memory.
  asm volatile("cp.async.wait_group 0;\n" ::);
#pragma unroll
  for (int m = 0; m < MT; ++m)
#pragma unroll
    for (int n = 0; n < 2 * NT; ++n) {
      const int r = bm + wm * (BM / WARPS_M) + m * 16 + lane / 4;
      const int c = bn + wn * (BN / WARPS_N) + n * 8 + lane % 4 * 2;
      *(half2*)(C + (size_t)r * N + c) = __floats2half2_rn(acc[m][n][0], acc[m][n][1]);
      *(half2*)(C + (size_t)(r + 8) * N + c) = __floats2half2_rn(acc[m][n][2], acc[m][n][3]);
    }
  if (times && tid == 0) {
    unsigned long long* mine = times + 4 * blockIdx.x;
    mine[0] = c1 - c0;
    mine[1] = c2 - c1;
    mine[2] = clock64() - c2;
    mine[3] = nanoseconds() - t0;
  }
}
