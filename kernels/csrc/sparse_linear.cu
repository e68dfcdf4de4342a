// x += h . weight for 1 to 4 rows of squared ReLUs: of ten hidden values about nine are zero, and the weight rows of hidden
// values that are zero in every row are never read.
//
// A block takes a column strip of the output and a share of the hidden values. It lists the ones that count, in order, then
// its threads go through the list in turn, a few lanes side by side on each weight row, with several loads on their way, and
// their sums meet in a fixed order. With one row of h the strips are so narrow that no two blocks share one, which saves
// the meeting of the blocks; with more rows more is read, and whole cache lines pay.
#include "linear.cuh"

namespace albatross {
namespace {

constexpr int kSparseThreads = 512;
constexpr int kSparseWarps = kSparseThreads / kWarp;
constexpr int kSparseRows = 4;
constexpr int kFlight = 8;           // weight loads a thread has on their way
constexpr int kCounterColumns = 64;  // columns for which launch.h promises a counter

struct SparsePlan {
  int lanes;   // a strip is 8 * lanes columns wide
  int shares;  // blocks that share a strip
};

// Hidden values that are listed at a time: with one row all that a model of width 4096 has.
constexpr int listed_at_a_time(int rows) { return rows == 1 ? 16384 : 8192; }

// By shape alone: the shares decide the order of the sums.
SparsePlan plan_of(int rows, int outputs) {
  constexpr int most_blocks = 132;  // one on every multiprocessor
  SparsePlan plan = {rows == 1 ? 2 : 8, 1};
  if (rows == 1) {
    while (plan.lanes < 8 && outputs / (8 * plan.lanes) > most_blocks) plan.lanes *= 2;
    return plan;
  }
  while (outputs / kCounterColumns * plan.shares * 2 <= most_blocks && plan.shares < 16) plan.shares *= 2;
  return plan;
}

// A weight is read once: it shall not push anything out of L1.
__device__ __forceinline__ uint4 load_weight(const half* p) {
  uint4 out;
  asm volatile("ld.global.nc.L1::no_allocate.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(out.x), "=r"(out.y), "=r"(out.z), "=r"(out.w)
               : "l"(p));
  return out;
}

// What is not zero among eight halfs: a bit each. NaN counts.
__device__ __forceinline__ unsigned nonzero_bits(uint4 bits) {
  const unsigned words[4] = {bits.x, bits.y, bits.z, bits.w};
  unsigned out = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out |= (words[i] & 0x7fffu ? 1u : 0u) << (2 * i);
    out |= (words[i] & 0x7fff0000u ? 1u : 0u) << (2 * i + 1);
  }
  return out;
}

// The hidden values that count among those from `begin` to `end`, in order: their numbers, counted from `begin`, and their
// values in each row. `end` - `begin` is at most `listed`.
template <int rows>
struct SparseList {
  static constexpr int listed = listed_at_a_time(rows);
  unsigned short number[listed];
  half value[listed][rows];
};

template <int rows>
struct SparseShared {
  union {
    SparseList<rows> list;
    float sums[kSparseWarps * rows * 8 * 8];  // [warp][row][column of the strip], at most 64 columns
  };
  int warp_counts[kSparseWarps];
  bool is_last;
};

// Fills the list and returns its length, the same for every thread. Holds barriers.
template <int rows>
__device__ __forceinline__ int make_list(const SparseLinear& task, int begin, int end, SparseShared<rows>& shared) {
  constexpr int most = SparseList<rows>::listed / kSparseThreads;  // hidden values of a thread
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int per_thread = ceil_div(end - begin, kSparseThreads * 8) * 8;
  const int own = begin + static_cast<int>(threadIdx.x) * per_thread;
  uint4 h[rows][most / 8];
  unsigned mask = 0;
#pragma unroll
  for (int row = 0; row < rows; ++row) {
#pragma unroll
    for (int i = 0; i < most / 8; ++i) {
      const int at = own + i * 8;
      const bool wanted = i * 8 < per_thread && at < end;
      h[row][i] = wanted ? *reinterpret_cast<const uint4*>(task.h + static_cast<int64_t>(row) * task.inputs + at) : make_uint4(0, 0, 0, 0);
    }
  }
#pragma unroll
  for (int row = 0; row < rows; ++row) {
#pragma unroll
    for (int i = 0; i < most / 8; ++i) mask |= nonzero_bits(h[row][i]) << (i * 8);
  }
  const int count = __popc(mask);
  int place = count;  // after the sums: how many the warp's lanes up to this one have
#pragma unroll
  for (int distance = 1; distance < kWarp; distance *= 2) {
    const int before = __shfl_up_sync(kAllLanes, place, distance);
    if (lane >= distance) place += before;
  }
  if (lane == kWarp - 1) shared.warp_counts[warp] = place;
  place -= count;
  __syncthreads();
  int total = 0;
#pragma unroll
  for (int i = 0; i < kSparseWarps; ++i) {
    if (i == warp) place += total;
    total += shared.warp_counts[i];
  }
#pragma unroll
  for (int i = 0; i < most; ++i) {
    if (mask >> i & 1) {
      shared.list.number[place] = static_cast<unsigned short>(own - begin + i);
#pragma unroll
      for (int row = 0; row < rows; ++row) {
        const uint4 eight = h[row][i / 8];
        const unsigned word = i % 8 < 2 ? eight.x : i % 8 < 4 ? eight.y : i % 8 < 6 ? eight.z : eight.w;
        shared.list.value[place][row] = __ushort_as_half(static_cast<unsigned short>(i % 2 ? word >> 16 : word));
      }
      ++place;
    }
  }
  __syncthreads();
  return total;
}

// Adds to sums[row][8] what the listed weight rows give in the thread's eight columns; threads `slot`, `slot` + `slots`, ...
template <int rows>
__device__ __forceinline__ void add_listed(const SparseList<rows>& list, int count, const half* column, int outputs, int slot,
                                           int slots, float (&sums)[rows][8]) {
  for (int first = slot; first < count; first += slots * kFlight) {
    uint4 weights[kFlight];
#pragma unroll
    for (int i = 0; i < kFlight; ++i) {
      const int entry = first + i * slots;
      if (entry < count) weights[i] = load_weight(column + static_cast<int64_t>(list.number[entry]) * outputs);
    }
#pragma unroll
    for (int i = 0; i < kFlight; ++i) {
      const int entry = first + i * slots;
      if (entry >= count) break;
      float w[8];
      to_float(as_half8(weights[i]), w);
#pragma unroll
      for (int row = 0; row < rows; ++row) {
        const float h = __half2float(list.value[entry][row]);
#pragma unroll
        for (int j = 0; j < 8; ++j) sums[row][j] += h * w[j];
      }
    }
  }
}

template <int rows, int lanes>
__global__ void __launch_bounds__(kSparseThreads)
    sparse_kernel(const __grid_constant__ SparseLinear task, int shares) {
  extern __shared__ uint4 raw[];
  SparseShared<rows>& shared = *reinterpret_cast<SparseShared<rows>*>(raw);
  constexpr int columns = 8 * lanes, slots = kSparseThreads / lanes;
  const int strip = blockIdx.x / shares, share = blockIdx.x % shares;
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int first_column = strip * columns;
  const int per_share = ceil_div(ceil_div(task.inputs, 8), shares) * 8;
  const int begin = min(share * per_share, task.inputs), end = min(begin + per_share, task.inputs);
  // The thread's result, and what it is added to, which would otherwise be waited for at the end.
  const int row = threadIdx.x / columns, column = threadIdx.x % columns;
  const bool is_result = threadIdx.x < rows * columns;
  half* out = task.x + static_cast<int64_t>(row) * task.outputs + first_column + column;
  const float before = is_result ? __half2float(*out) : 0.0f;

  float sums[rows][8] = {};
  for (int from = begin; from < end; from += SparseList<rows>::listed) {
    const int count = make_list<rows>(task, from, min(from + SparseList<rows>::listed, end), shared);
    const half* column = task.weight + static_cast<int64_t>(from) * task.outputs + first_column + threadIdx.x % lanes * 8;
    add_listed<rows>(shared.list, count, column, task.outputs, threadIdx.x / lanes, slots, sums);
    __syncthreads();  // the list is replaced, by the next one or by the sums
  }

  // Over the lanes of a warp that have the same columns, then over the warps.
#pragma unroll
  for (int i = 0; i < rows; ++i) {
#pragma unroll
    for (int j = 0; j < 8; ++j) {
#pragma unroll
      for (int distance = kWarp / 2; distance >= lanes; distance /= 2) {
        sums[i][j] += __shfl_xor_sync(kAllLanes, sums[i][j], distance);
      }
      if (lane < lanes) shared.sums[(warp * rows + i) * columns + lane * 8 + j] = sums[i][j];
    }
  }
  __syncthreads();
  float sum = 0.0f;
  if (is_result) {
    sum = shared.sums[row * columns + column];
#pragma unroll
    for (int i = 1; i < kSparseWarps; ++i) sum += shared.sums[(i * rows + row) * columns + column];
  }
  if (rows > 1 && shares > 1) {
    // partial [share][row][output]; the block that comes last to its strip adds the shares up, always in their order.
    const int64_t place = static_cast<int64_t>(row) * task.outputs + first_column + column;
    const int64_t step = static_cast<int64_t>(rows) * task.outputs;
    if (is_result) __stcg(task.partial + share * step + place, sum);
    __threadfence();
    __syncthreads();
    if (threadIdx.x == 0) shared.is_last = atomicAdd(task.counters + strip, 1) == shares - 1;
    __syncthreads();
    if (!shared.is_last) return;
    __threadfence();
    if (threadIdx.x == 0) task.counters[strip] = 0;
    if (is_result) {
      sum = __ldcg(task.partial + place);
      for (int i = 1; i < shares; ++i) sum += __ldcg(task.partial + i * step + place);
    }
  }
  if (is_result) *out = __float2half_rn(before + sum);
}

template <int rows, int lanes>
cudaError_t launch(const SparseLinear& task, int shares, cudaStream_t stream) {
  static KnownDevices known;
  constexpr int bytes = static_cast<int>(sizeof(SparseShared<rows>));
  const cudaError_t error = allow_shared(sparse_kernel<rows, lanes>, bytes, known);
  if (error != cudaSuccess) return error;
  sparse_kernel<rows, lanes><<<task.outputs / (8 * lanes) * shares, kSparseThreads, bytes, stream>>>(task, shares);
  return ok();
}

}  // namespace

int64_t sparse_partials(int rows, int, int outputs) {
  const SparsePlan plan = plan_of(rows, outputs);
  return plan.shares > 1 ? static_cast<int64_t>(plan.shares) * rows * outputs : 0;
}

cudaError_t sparse_linear(const SparseLinear& task, cudaStream_t stream) {
  const bool fits = task.inputs > 0 && task.inputs % 8 == 0 && task.outputs > 0 && task.outputs % kCounterColumns == 0;
  if (!fits || task.rows < 1 || task.rows > kSparseRows) return cudaErrorInvalidValue;
  const SparsePlan plan = plan_of(task.rows, task.outputs);
  switch (task.rows) {
    case 1:
      if (plan.lanes == 2) return launch<1, 2>(task, 1, stream);
      return plan.lanes == 4 ? launch<1, 4>(task, 1, stream) : launch<1, 8>(task, 1, stream);
    case 2: return launch<2, 8>(task, plan.shares, stream);
    case 3: return launch<3, 8>(task, plan.shares, stream);
    default: return launch<4, 8>(task, plan.shares, stream);
  }
}

}  // namespace albatross
