// Products of 1 to 8 rows with large weights: every weight is read once, and reading is all the time there is.
//
// A block takes 16 outputs, or 2, 4, 8 times as many where K is short. Its eight warps share K out in pieces of 64 dealt in
// turn, so that the block reads neighbouring memory at any moment; the number of warps that share one K follows from K alone:
// a result depends neither on how many rows or groups there are nor on the card. A warp keeps a ring of its pieces in shared
// memory, filled by copies that nobody waits for until they are used; no barrier is needed before the sums of the warps
// meet. The arithmetic is left to the tensor cores (weights are the left operand, the rows, filled up to 8, the right
// one): by plain instructions, eight rows would take longer than reading.
#include "linear.cuh"

namespace albatross {
namespace {

constexpr int kGemvWarps = 8;
constexpr int kGemvThreads = kGemvWarps * kWarp;
constexpr int kGemvRows = 8;
constexpr int kTileOutputs = 16;
constexpr int kPieceK = 64;                // of one piece: 128 bytes of an output's weights, a whole cache line
constexpr int kPieceChunks = kPieceK / 8;  // 16 bytes each
constexpr int kPieceBytes = kTileOutputs * kPieceK * 2;
constexpr int kRowBytes = kPieceK * 2;
constexpr int kPlaceBits = 7;
static_assert(1 << kPlaceBits == kTileOutputs * kGemvWarps, "the most outputs of a block, without any share");
// Up to so many blocks, three on every multiprocessor of an H200, the ring gets a fourth piece: fewer blocks must keep as
// many bytes on their way. With more blocks four shall fit on a multiprocessor, so that one wave takes all there are.
constexpr int kFewBlocks = 396;

struct GemvPlan {
  int first[kMaxGroups];       // a group's first block; more than any block for groups that are not there
  int share_bits[kMaxGroups];  // 1 << bits warps share one K
};

// At least one and a half pieces a warp: with less, starting up and adding up would be the larger part.
int share_bits_of(int inputs) {
  const int pieces = ceil_div(inputs, kPieceK);
  int bits = 0;
  while (1 << bits < kGemvWarps && pieces >= 3 << bits) ++bits;
  return bits;
}

// One warp's work and its ring. Chunk c of row r of a piece lies at place c ^ r % 8 of that row, so that neither the copies
// nor the fragments' loads meet in a bank.
template <int stages>
class WarpRing {
 public:
  __device__ __forceinline__ WarpRing(const LinearGroup& group, int first_output, int share, int share_bits, int rows, unsigned base)
      : rows_(rows), base_(base), stage_bytes_(kPieceBytes + rows * kRowBytes), step_(kPieceK << share_bits) {
    const int lane = threadIdx.x % kWarp, row = lane / kPieceChunks, chunk = lane % kPieceChunks;
    const int k = share * kPieceK + chunk * 8;
    pieces_ = (ceil_div(group.inputs, kPieceK) - share + (1 << share_bits) - 1) >> share_bits;
    left_ = group.inputs - k;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      // An output behind the last one reads the last one's weights; its sum is dropped.
      const int output = min(first_output + i * 4 + row, group.outputs - 1);
      weight_[i] = group.weight + static_cast<int64_t>(output) * group.inputs + k;
    }
#pragma unroll
    for (int i = 0; i < 2; ++i) input_[i] = group.input + static_cast<int64_t>(min(i * 4 + row, rows - 1)) * group.inputs + k;
    // Rows 4 to 7 of a piece and every other four lie at the same places, with the chunk's highest bit turned over.
    even_ = row * kRowBytes + (chunk ^ row) * 16;
    odd_ = row * kRowBytes + (chunk ^ row ^ 4) * 16;
    const int output = lane % 16, input_row = min(lane % 8, rows - 1);
    weight_fragment_ = output * kRowBytes + (lane / 16 ^ output % 8) * 16;
    input_fragment_ = kPieceBytes + input_row * kRowBytes + (lane / 8 ^ input_row) * 16;
  }

  __device__ __forceinline__ int pieces() const { return pieces_; }

  // Piece `ahead` of the next one that advance() has not passed, to stage `stage`.
  __device__ __forceinline__ void load_weights(int ahead, int stage) const {
    const int k = ahead * step_;
    const bool wanted = k < left_;
    const unsigned to = base_ + stage * stage_bytes_;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      copy_async(to + i * 4 * kRowBytes + (i % 2 ? odd_ : even_), weight_[i] + (wanted ? k : 0), wanted);
    }
  }

  __device__ __forceinline__ void load_inputs(int ahead, int stage) const {
    const int k = ahead * step_, row = threadIdx.x % kWarp / kPieceChunks;
    const bool wanted = k < left_;
    const unsigned to = base_ + stage * stage_bytes_ + kPieceBytes;
    if (row < rows_) copy_async(to + even_, input_[0] + (wanted ? k : 0), wanted);
    if (row + 4 < rows_) copy_async(to + 4 * kRowBytes + odd_, input_[1] + (wanted ? k : 0), wanted);
  }

  __device__ __forceinline__ void advance(int pieces) {
    const int k = pieces * step_;
    left_ -= k;
#pragma unroll
    for (int i = 0; i < 4; ++i) weight_[i] += k;
#pragma unroll
    for (int i = 0; i < 2; ++i) input_[i] += k;
  }

  // Adds a piece to the sums: one for the first and one for the second half of every 32 k, so that they do not wait for each other.
  __device__ __forceinline__ void multiply(int stage, float (&sums)[2][4]) const {
    const unsigned from = base_ + stage * stage_bytes_;
#pragma unroll
    for (int part = 0; part < kPieceK / 32; ++part) {
      unsigned x[4], low[4], high[4];
      load_matrices(x, from + (input_fragment_ ^ part * 64));
      load_matrices(low, from + (weight_fragment_ ^ part * 64));
      load_matrices(high, from + (weight_fragment_ ^ (part * 64 + 32)));
      multiply16(sums[0], low, x[0], x[1]);
      multiply16(sums[1], high, x[2], x[3]);
    }
  }

 private:
  const half* weight_[4];  // of the lane's chunk in rows lane / 8, + 4, + 8, + 12
  const half* input_[2];
  int rows_, left_, pieces_;
  unsigned base_, even_, odd_, weight_fragment_, input_fragment_;
  int stage_bytes_, step_;
};

template <int stages>
__global__ void __launch_bounds__(kGemvThreads, 4)
    gemv_kernel(const __grid_constant__ GroupedLinear task, const __grid_constant__ GemvPlan plan) {
  extern __shared__ uint4 shared[];
  const int lane = threadIdx.x % kWarp, warp = threadIdx.x / kWarp, rows = task.rows;
  const int block = blockIdx.x;
  int index = 0;
#pragma unroll
  for (int i = 1; i < kMaxGroups; ++i) index += block >= plan.first[i];
  const LinearGroup& group = task.group[index];
  const int share_bits = plan.share_bits[index], shares = 1 << share_bits;
  const int block_outputs = kTileOutputs * kGemvWarps >> share_bits;
  const int first_output = (block - plan.first[index]) * block_outputs;
  const int ring_bytes = stages * (kPieceBytes + rows * kRowBytes);

  WarpRing<stages> ring(group, first_output + (warp >> share_bits) * kTileOutputs, warp & (shares - 1), share_bits, rows,
                        shared_address(shared) + warp * ring_bytes);
  // The weights first: they come from far away, and do not depend on the kernel before.
#pragma unroll
  for (int i = 0; i < stages - 1; ++i) ring.load_weights(i, i);
#pragma unroll
  for (int i = 0; i < stages - 1; ++i) {
    ring.load_inputs(i, i);
    copy_commit();
  }
  ring.advance(stages - 1);
  // The thread's first result, and what it is added to, which would otherwise be waited for at the end.
  const int results = rows * block_outputs, place_bits = kPlaceBits - share_bits;
  const auto output_of = [&](int i) { return first_output + (i & (block_outputs - 1)); };
  const auto place_of = [&](int i) { return static_cast<int64_t>(i >> place_bits) * group.outputs + output_of(i); };
  const auto exists = [&](int i) { return i < results && output_of(i) < group.outputs; };
  float before = 0.0f;
  if (task.accumulate && exists(threadIdx.x)) before = load_result(group.output, place_of(threadIdx.x), task.output_is_float);

  float sums[2][4] = {};
  int stage = 0, replaced = stages - 1;
  for (int piece = 0; piece < ring.pieces(); ++piece) {
    copy_wait<stages - 2>();
    __syncwarp();  // every lane's copies have arrived, and every lane is done with the piece that is now replaced
    if (piece + stages - 1 < ring.pieces()) {
      ring.load_weights(0, replaced);
      ring.load_inputs(0, replaced);
      ring.advance(1);
    }
    copy_commit();
    ring.multiply(stage, sums);
    replaced = stage;
    stage = stage + 1 == stages ? 0 : stage + 1;
  }
  copy_wait<0>();
  __syncwarp();

  // The warp's sums, [row][output], take the place of its ring.
  const auto sums_of = [&](int i) { return reinterpret_cast<float*>(reinterpret_cast<char*>(shared) + i * ring_bytes); };
  float* own = sums_of(warp);
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    const int row = lane % 4 * 2 + i % 2;
    if (row < rows) own[row * kTileOutputs + lane / 4 + i / 2 * 8] = sums[0][i] + sums[1][i];
  }
  __syncthreads();
  for (int i = threadIdx.x; i < results; i += kGemvThreads) {
    if (!exists(i)) continue;
    const int row = i >> place_bits, output = i & (block_outputs - 1);
    const int first_warp = output / kTileOutputs << share_bits, word = row * kTileOutputs + output % kTileOutputs;
    float sum = sums_of(first_warp)[word];
    for (int share = 1; share < shares; ++share) sum += sums_of(first_warp + share)[word];
    sum = activate(sum, group.activation);
    if (task.accumulate) sum += i == threadIdx.x ? before : load_result(group.output, place_of(i), task.output_is_float);
    store_result(group.output, place_of(i), sum, task.output_is_float);
  }
}

template <int stages>
cudaError_t launch(const GroupedLinear& task, const GemvPlan& plan, int blocks, cudaStream_t stream) {
  static KnownDevices known;
  constexpr int stage_most = kPieceBytes + kGemvRows * kRowBytes;
  const cudaError_t error = allow_shared(gemv_kernel<stages>, kGemvWarps * stages * stage_most, known);
  if (error != cudaSuccess) return error;
  const size_t bytes = static_cast<size_t>(kGemvWarps) * stages * (kPieceBytes + task.rows * kRowBytes);
  gemv_kernel<stages><<<blocks, kGemvThreads, bytes, stream>>>(task, plan);
  return ok();
}

}  // namespace

cudaError_t gemv(const GroupedLinear& task, cudaStream_t stream) {
  if (task.groups < 1 || task.groups > kMaxGroups || task.rows < 1 || task.rows > kGemvRows) return cudaErrorInvalidValue;
  GemvPlan plan = {};
  int blocks = 0;
  for (int i = 0; i < kMaxGroups; ++i) {
    plan.first[i] = i < task.groups ? blocks : INT32_MAX;
    if (i >= task.groups) continue;
    const LinearGroup& group = task.group[i];
    const bool fits = group.outputs > 0 && group.inputs > 0 && group.inputs % 8 == 0;
    if (!fits || (task.accumulate && group.activation != kNone)) return cudaErrorInvalidValue;
    plan.share_bits[i] = share_bits_of(group.inputs);
    blocks += ceil_div(group.outputs, kTileOutputs * kGemvWarps >> plan.share_bits[i]);
  }
  int shared_most = 0;
  const cudaError_t error = shared_limit(shared_most);
  if (error != cudaSuccess) return error;
  const auto fits = [&](int stages) { return kGemvWarps * stages * (kPieceBytes + kGemvRows * kRowBytes) <= shared_most; };
  if (!fits(3)) return launch<2>(task, plan, blocks, stream);
  return blocks <= kFewBlocks && fits(4) ? launch<4>(task, plan, blocks, stream) : launch<3>(task, plan, blocks, stream);
}

}  // namespace albatross
