// Several independent products of many rows with small weights in one launch: the LoRAs' way down (long K, few outputs) and
// up (short K, many outputs).
//
// A block takes one tile of one group. Way down there are few tiles with a long K, so the warps of a block share K out: each
// takes its own 16 or 32 of every stage's k, nothing is read from shared memory twice, and the sums meet there at the end in
// a fixed order. Way up the warps share the tile. Which tile shape is used follows from a small model of the time each would
// take, so the last bits of a result may depend on the number of rows, never on chance.
#include <algorithm>

#include "linear.cuh"

namespace albatross {
namespace {

// A tile of kRows x kOutputs by warps that take warp_rows x warp_outputs each; `shares` warps on each spot share K. `depth`
// is the k of one stage of the ring.
template <int kRows, int kOutputs, int warp_rows, int warp_outputs, int shares_, int depth_, int stages_>
struct Tile {
  static constexpr int rows = kRows, outputs = kOutputs, shares = shares_, depth = depth_, stages = stages_;
  static constexpr int row_parts = warp_rows / 16, output_parts = warp_outputs / 8;
  static constexpr int across = kOutputs / warp_outputs, spots = kRows / warp_rows * across;
  static constexpr int threads = spots * shares * kWarp;
  static constexpr int row_halfs = depth + 8;  // padded: eight neighbouring rows lie in different banks
  static constexpr int chunks = depth / 8, rows_a_turn = threads / chunks, copies = (rows + outputs) / rows_a_turn;
  static constexpr int stage_bytes = (rows + outputs) * row_halfs * 2;
  static constexpr int sum_floats = outputs + 8;   // a padded row of the sums
  static constexpr int half_row = outputs + 8;     // a padded row of rounded results
  static constexpr int ring_bytes = stages * stage_bytes, sums_bytes = shares * rows * sum_floats * 4;
  static constexpr int shared_bytes = ring_bytes > sums_bytes ? ring_bytes : sums_bytes;
  // Two blocks on a multiprocessor at 128 registers and 256 threads; the same registers with fewer threads.
  static constexpr int blocks = 512 / threads;

  static_assert(rows % rows_a_turn == 0 && outputs % rows_a_turn == 0, "a copy is of the input or of the weight");
  static_assert(depth / shares % 16 == 0 && output_parts % 2 == 0, "whole fragments");
  static_assert(shared_bytes <= 99 * 1024, "what every card since sm_80 gives a block");
};

struct GemmPlan {
  int first[kMaxGroups];    // a group's first block; more than any block for groups that are not there
  int across[kMaxGroups];   // tiles side by side
};

// Where one thread copies from: its chunk of k in the rows that it brings in, input rows first.
template <typename T>
struct Source {
  const half* from[T::copies];
  unsigned to;
  int k, inputs;
  unsigned there;  // a bit for every row that exists

  __device__ __forceinline__ Source(const LinearGroup& group, int rows, int first_row, int first_output, unsigned base)
      : k(threadIdx.x % T::chunks * 8), inputs(group.inputs), there(0) {
    const int turn_row = threadIdx.x / T::chunks;
    to = base + (turn_row * T::row_halfs + k) * 2;
#pragma unroll
    for (int i = 0; i < T::copies; ++i) {
      const int row = i * T::rows_a_turn + turn_row;
      const bool is_input = i * T::rows_a_turn < T::rows;
      const int place = is_input ? first_row + row : first_output + row - T::rows;
      const int last = (is_input ? rows : group.outputs) - 1;
      from[i] = (is_input ? group.input : group.weight) + static_cast<int64_t>(min(place, last)) * inputs;
      there |= (place <= last ? 1u : 0u) << i;
    }
  }

  __device__ __forceinline__ void load(int stage) const {
    const int at = stage * T::depth + k;
    const bool inside = at < inputs;
#pragma unroll
    for (int i = 0; i < T::copies; ++i) {
      const unsigned place = to + stage % T::stages * T::stage_bytes + i * T::rows_a_turn * T::row_halfs * 2;
      copy_async(place, from[i] + (inside ? at : 0), inside && (there >> i & 1));
    }
  }
};

template <typename T>
using Sums = float[T::row_parts][T::output_parts][4];

// Adds the warp's share of a stage. `input` and `weight` are this lane's addresses for load_matrices.
template <typename T>
__device__ __forceinline__ void multiply_stage(unsigned input, unsigned weight, Sums<T>& sums) {
#pragma unroll
  for (int step = 0; step < T::depth / T::shares / 16; ++step) {
    unsigned a[T::row_parts][4];
#pragma unroll
    for (int i = 0; i < T::row_parts; ++i) load_matrices(a[i], input + (i * 16 * T::row_halfs + step * 16) * 2);
#pragma unroll
    for (int j = 0; j < T::output_parts; j += 2) {
      unsigned b[4];
      load_matrices(b, weight + (j * 8 * T::row_halfs + step * 16) * 2);
#pragma unroll
      for (int i = 0; i < T::row_parts; ++i) {
        multiply16(sums[i][j], a[i], b[0], b[1]);
        multiply16(sums[i][j + 1], a[i], b[2], b[3]);
      }
    }
  }
}

// Calls use(row of the tile, first of two neighbouring outputs, their sums) for all that the lane holds.
template <typename T, typename Use>
__device__ __forceinline__ void for_each_pair(const Sums<T>& sums, int spot, Use use) {
  const int lane = threadIdx.x % kWarp;
  const int first_row = spot / T::across * T::row_parts * 16 + lane / 4;
  const int first_output = spot % T::across * T::output_parts * 8 + lane % 4 * 2;
#pragma unroll
  for (int i = 0; i < T::row_parts; ++i) {
#pragma unroll
    for (int j = 0; j < T::output_parts; ++j) {
      use(first_row + i * 16, first_output + j * 8, sums[i][j][0], sums[i][j][1]);
      use(first_row + i * 16 + 8, first_output + j * 8, sums[i][j][2], sums[i][j][3]);
    }
  }
}

// Half results with nothing to add: rounded in the registers, and written by whole rows of the tile.
template <typename T>
__device__ __forceinline__ void write_rounded(const LinearGroup& group, int rows, int first_row, int first_output, int spot,
                                              const Sums<T>& sums, half* shared) {
  for_each_pair<T>(sums, spot, [&](int row, int output, float left, float right) {
    const half2 pair = __floats2half2_rn(activate(left, group.activation), activate(right, group.activation));
    *reinterpret_cast<half2*>(shared + row * T::half_row + output) = pair;
  });
  __syncthreads();
  half* out = static_cast<half*>(group.output);
#pragma unroll
  for (int i = threadIdx.x; i < T::rows * T::outputs / 8; i += T::threads) {
    const int row = i / (T::outputs / 8), output = i % (T::outputs / 8) * 8;
    if (first_row + row >= rows || first_output + output >= group.outputs) continue;
    const int64_t place = static_cast<int64_t>(first_row + row) * group.outputs + first_output + output;
    store8(out + place, load8(shared + row * T::half_row + output));
  }
}

// Everything else: the shares' sums meet in shared memory, four neighbouring outputs a thread.
template <typename T>
__device__ __forceinline__ void write_summed(const LinearGroup& group, bool accumulate, bool is_float, int rows, int first_row,
                                             int first_output, int spot, int share, const Sums<T>& sums, float* shared) {
  constexpr int floats = T::rows * T::sum_floats;
  for_each_pair<T>(sums, spot, [&](int row, int output, float left, float right) {
    *reinterpret_cast<float2*>(shared + share * floats + row * T::sum_floats + output) = make_float2(left, right);
  });
  __syncthreads();
  for (int i = threadIdx.x; i < T::rows * T::outputs / 4; i += T::threads) {
    const int row = i / (T::outputs / 4), output = i % (T::outputs / 4) * 4;
    if (first_row + row >= rows || first_output + output >= group.outputs) continue;
    const float* part = shared + row * T::sum_floats + output;
    float4 sum = *reinterpret_cast<const float4*>(part);
#pragma unroll
    for (int s = 1; s < T::shares; ++s) {
      const float4 other = *reinterpret_cast<const float4*>(part + s * floats);
      sum = make_float4(sum.x + other.x, sum.y + other.y, sum.z + other.z, sum.w + other.w);
    }
    const float values[4] = {sum.x, sum.y, sum.z, sum.w};
    const int64_t place = static_cast<int64_t>(first_row + row) * group.outputs + first_output + output;
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      const float value = activate(values[j], group.activation);
      store_result(group.output, place + j, accumulate ? value + load_result(group.output, place + j, is_float) : value, is_float);
    }
  }
}

template <typename T>
__global__ void __launch_bounds__(T::threads, T::blocks)
    gemm_kernel(const __grid_constant__ GroupedLinear task, const __grid_constant__ GemmPlan plan) {
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp;
  const int spot = warp % T::spots, share = warp / T::spots;
  const int block = blockIdx.x;
  int index = 0;
#pragma unroll
  for (int i = 1; i < kMaxGroups; ++i) index += block >= plan.first[i];
  const LinearGroup& group = task.group[index];
  const int tile = block - plan.first[index];
  const int first_row = tile / plan.across[index] * T::rows, first_output = tile % plan.across[index] * T::outputs;

  const unsigned base = shared_address(shared);
  const Source<T> source(group, task.rows, first_row, first_output, base);
  const int stages = ceil_div(group.inputs, T::depth);
#pragma unroll
  for (int i = 0; i < T::stages - 1; ++i) {
    if (i < stages) source.load(i);
    copy_commit();
  }
  // Lanes' rows and k in load_matrices: for the input (0-7, k 0-7), (8-15, k 0-7), (0-7, k 8-15), (8-15, k 8-15), for the
  // weight (0-7, k 0-7), (0-7, k 8-15), (8-15, k 0-7), (8-15, k 8-15): a fragment of 16 rows, and two of 8 outputs.
  const int own_k = share * (T::depth / T::shares);
  const int input_row = spot / T::across * T::row_parts * 16 + lane % 16;
  const int weight_row = T::rows + spot % T::across * T::output_parts * 8 + lane / 16 * 8 + lane % 8;
  const unsigned input = base + (input_row * T::row_halfs + own_k + lane / 16 * 8) * 2;
  const unsigned weight = base + (weight_row * T::row_halfs + own_k + lane / 8 % 2 * 8) * 2;
  Sums<T> sums = {};
  for (int stage = 0; stage < stages; ++stage) {
    copy_wait<T::stages - 2>();
    __syncthreads();  // every thread's copies have arrived, and every thread is done with the stage that is now replaced
    if (stage + T::stages - 1 < stages) source.load(stage + T::stages - 1);
    copy_commit();
    const int place = stage % T::stages * T::stage_bytes;
    multiply_stage<T>(input + place, weight + place, sums);
  }
  copy_wait<0>();
  __syncthreads();
  if (T::shares == 1 && !task.accumulate && !task.output_is_float) {
    write_rounded<T>(group, task.rows, first_row, first_output, spot, sums, reinterpret_cast<half*>(shared));
  } else {
    write_summed<T>(group, task.accumulate, task.output_is_float, task.rows, first_row, first_output, spot, share, sums,
                    reinterpret_cast<float*>(shared));
  }
}

// Nanoseconds, roughly: every wave of blocks (as many as multiprocessors) starts up, then takes what is longest: its tiles'
// operands through one multiprocessor's port, its products, or all operands through the second-level cache. An H200's
// numbers; others differ in scale, which moves no choice far.
template <typename T>
double predicted(const GroupedLinear& task) {
  constexpr double port = 100, cache = 5500, products = 2000, start = 700, processors = 132;  // a nanosecond; nanoseconds
  double bytes = 0, blocks = 0, work = 0;
  for (int i = 0; i < task.groups; ++i) {
    const LinearGroup& group = task.group[i];
    const double tiles = static_cast<double>(ceil_div(task.rows, T::rows)) * ceil_div(group.outputs, T::outputs);
    bytes += tiles * 2 * (static_cast<double>(T::rows + T::outputs) * group.inputs + T::rows * T::outputs);
    work += tiles * T::rows * T::outputs * group.inputs;
    blocks += tiles;
  }
  const double waves = static_cast<int64_t>((blocks + processors - 1) / processors);
  const double one_by_one = waves / blocks * std::max(bytes / port, work / products);
  return start * waves / T::blocks + std::max(one_by_one, bytes / cache);
}

template <typename T>
cudaError_t launch(const GroupedLinear& task, cudaStream_t stream) {
  static KnownDevices known;
  const cudaError_t error = allow_shared(gemm_kernel<T>, T::shared_bytes, known);
  if (error != cudaSuccess) return error;
  GemmPlan plan = {};
  int blocks = 0;
  for (int i = 0; i < kMaxGroups; ++i) {
    plan.first[i] = i < task.groups ? blocks : INT32_MAX;
    if (i >= task.groups) continue;
    plan.across[i] = ceil_div(task.group[i].outputs, T::outputs);
    blocks += plan.across[i] * ceil_div(task.rows, T::rows);
  }
  gemm_kernel<T><<<blocks, T::threads, T::shared_bytes, stream>>>(task, plan);
  return ok();
}

// The tile that is predicted to be the fastest, the first one of equals.
template <typename T, typename... Others>
cudaError_t launch_best(const GroupedLinear& task, cudaStream_t stream) {
  const double own = predicted<T>(task);
  if constexpr (sizeof...(Others) > 0) {
    if (((predicted<Others>(task) < own) || ...)) return launch_best<Others...>(task, stream);
  }
  return launch<T>(task, stream);
}

}  // namespace

cudaError_t grouped_gemm(const GroupedLinear& task, cudaStream_t stream) {
  if (task.groups < 1 || task.groups > kMaxGroups || task.rows < 1) return cudaErrorInvalidValue;
  int longest = 0;
  for (int i = 0; i < task.groups; ++i) {
    const LinearGroup& group = task.group[i];
    const bool fits = group.outputs > 0 && group.inputs > 0 && group.inputs % 32 == 0 && group.outputs % 8 == 0;
    if (!fits || (task.accumulate && group.activation != kNone)) return cudaErrorInvalidValue;
    if (group.inputs > longest) longest = group.inputs;
  }
  //          rows, outputs, of a warp, shares, depth, stages
  if (longest >= 512) {
    return launch_best<Tile<128, 64, 32, 64, 2, 64, 3>, Tile<64, 64, 32, 32, 2, 64, 5>, Tile<64, 32, 32, 32, 4, 128, 3>,
                       Tile<32, 32, 32, 32, 8, 128, 5>, Tile<32, 16, 32, 16, 8, 128, 7>>(task, stream);
  }
  return launch_best<Tile<128, 128, 32, 64, 1, 32, 4>, Tile<64, 128, 32, 64, 1, 32, 4>, Tile<64, 64, 32, 32, 1, 32, 4>>(task, stream);
}

}  // namespace albatross
