// Products of bfloat16 rows with weights that never change, on matrix tiles. Every sum runs over the depth from its
// beginning to its end, whatever the block that it is made in.
#pragma once

#include <vector>

#include "tiles.h"
#include "vectors.h"

#if HAS_TILES
namespace {

// Weights lie in tiles of 16 columns, two side by side (a pair): [pairs][depth / 32][2][16][16][2], the last two being
// columns and neighbours in depth. Rows are read where they are.
constexpr int SIDE = 16;                 // rows and columns of a tile of sums
constexpr int DEPTH = 2 * SIDE;          // numbers of a row that one instruction multiplies
constexpr int STEP = 2 * SIDE * DEPTH;   // weights of a pair that a block of rows meets in one step
constexpr int LINES = STEP * 2 / 64;     // cache lines of them
constexpr int CHUNK = 4;                 // pairs whose weights stay in the second cache while all rows pass
constexpr int STAY = 18;                 // steps whose rows stay in the first cache while a chunk passes
constexpr int64_t AHEAD = 8192;          // bytes between what is multiplied and what is fetched, while nothing stays

// Sums of a row in both tiles of a pair, rounded, are two stretches of its `columns` in `out`.
struct Write {
  bf16* out;
  const bf16* bias;     // [columns] or null
  int64_t columns;
  int64_t step, apart;  // columns from pair to pair, and from one tile to the other

  void put(bf16* row, int64_t column, const float* sums) const {
    vf y = load(sums);
    if (bias) y += load(bias + column);
    store(row + column, y);
  }
  void operator()(int64_t row, int64_t pair, const float* sums) const {
    bf16* o = out + row * columns;
    put(o, pair * step, sums);
    put(o, pair * step + apart, sums + SIDE);
  }
};

// silu(first tile) * second tile: what `gate` makes of the two when they are written, to the bit.
struct WriteGated {
  bf16* out;
  const bf16* bias;  // [2 columns] or null
  int64_t columns;

  vf rounded(int64_t column, const float* sums) const {
    vf y = load(sums);
    if (bias) y += load(bias + column);
    const __m512i bits = _mm512_cvtepu16_epi32((__m256i)_mm512_cvtneps_pbh((__m512)y));
    return (vf)_mm512_slli_epi32(bits, 16);
  }
  void operator()(int64_t row, int64_t pair, const float* sums) const {
    const int64_t column = pair * SIDE;
    store(out + row * columns + column, silu(rounded(column, sums)) * rounded(columns + column, sums + SIDE));
  }
};

// A product of other rows with another weight of the same shape, which is added to rows [first, last) of the sums.
struct Addition {
  const bf16* x;  // [rows, 32 steps], of as many rows as the product has; those outside [first, last) hold zeros
  const bf16* weight;
  int64_t steps, first, last;
};

struct Operands {
  const bf16* x;  // [rows, 32 steps] with this stride
  int64_t stride;
  const bf16* weight;
  int64_t rows, steps;
  const std::vector<Addition>* additions;  // or null
};

// One thread's part: blocks of 32 rows [first, last), pairs [from, to).
template <class Finish>
class Product : Operands {
 public:
  Product(const Operands& operands, const Finish& finish, int64_t first, int64_t last, int64_t from, int64_t to)
      : Operands(operands), finish(finish), first(first), last(last), from(from), to(to) {}

  void run() {
    const int64_t parts = last - first > 1 ? (steps + STAY - 1) / STAY : 1;
    for (int64_t chunk = from; chunk < to; chunk += CHUNK)
      for (int64_t block = first; block < last; ++block)
        for (int64_t part = 0; part < parts; ++part)
          for (int64_t pair = chunk; pair < std::min(chunk + CHUNK, to); ++pair)
            if (block * 2 * SIDE + SIDE < rows)
              multiply<2>(block, pair, steps * part / parts, steps * (part + 1) / parts);
            else
              multiply<1>(block, pair, steps * part / parts, steps * (part + 1) / parts);
    finish_some(2 * SIDE);
  }

 private:
  // The last tile of rows begins so early that it is whole: nothing behind them is read, some sums are made twice.
  int64_t start(int64_t tile) const { return std::max<int64_t>(0, std::min(tile * SIDE, rows - SIDE)); }

  // Adds steps [begin, end) to the sums of a block whose rows fill TALL tiles.
  template <int TALL>
  void multiply(int64_t block, int64_t pair, int64_t begin, int64_t end) {
    float(*own)[2 * SIDE] = sums[(pair - from) % CHUNK];
    constexpr int64_t line = sizeof own[0];
    if (begin == 0) {
      _tile_zero(0);
      _tile_zero(1);
      if (TALL == 2) _tile_zero(2);
      if (TALL == 2) _tile_zero(3);
    } else {
      _tile_loadd(0, own[0], line);
      _tile_loadd(1, own[0] + SIDE, line);
      if (TALL == 2) _tile_loadd(2, own[SIDE], line);
      if (TALL == 2) _tile_loadd(3, own[SIDE] + SIDE, line);
    }
    const int64_t upper = start(2 * block), lower = start(2 * block + 1), bytes = stride * sizeof(bf16);
    const bf16 *a = x + upper * stride, *b = x + lower * stride, *w = weight + pair * steps * STEP;
    const int share = int((2 * SIDE + end - begin - 1) / (end - begin));
    const Fetch fetch_soon = soon(block, pair), fetch_later = later(block);
    for (int64_t step = begin; step < end; ++step) {
      fetch_soon(w + step * STEP);
      fetch_later(w + step * STEP);
      _tile_stream_loadd(6, w + step * STEP, 64);  // past the first cache, where the rows are
      _tile_loadd(4, a + step * DEPTH, bytes);
      _tile_dpbf16ps(0, 4, 6);
      _tile_stream_loadd(7, w + step * STEP + STEP / 2, 64);
      _tile_dpbf16ps(1, 4, 7);
      if (TALL == 2) {
        _tile_loadd(5, b + step * DEPTH, bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
      finish_some(share);
    }
    if (end == steps && additions)
      for (const Addition& more : *additions) add<TALL>(more, pair, upper, lower);
    finish_some(2 * SIDE);
    _tile_stored(0, own[0], line);
    _tile_stored(1, own[0] + SIDE, line);
    if (TALL == 2) _tile_stored(2, own[SIDE], line);
    if (TALL == 2) _tile_stored(3, own[SIDE] + SIDE, line);
    if (end < steps) return;
    done = own;
    done_pair = pair;
    done_rows[0] = upper;
    done_rows[1] = lower - SIDE;
    next = int(2 * block * SIDE - upper);
    stop = TALL == 2 ? 2 * SIDE : int(std::min<int64_t>(SIDE, rows));
  }

  template <int TALL>
  void add(const Addition& more, int64_t pair, int64_t upper, int64_t lower) const {
    const bool above = upper < more.last && more.first < upper + SIDE;
    const bool below = TALL == 2 && lower < more.last && more.first < lower + SIDE;
    if (!above && !below) return;
    const int64_t width = more.steps * DEPTH, bytes = width * sizeof(bf16);
    const bf16 *a = more.x + upper * width, *b = more.x + lower * width, *w = more.weight + pair * more.steps * STEP;
    for (int64_t step = 0; step < more.steps; ++step) {
      _tile_loadd(6, w + step * STEP, 64);
      _tile_loadd(7, w + step * STEP + STEP / 2, 64);
      if (above) {
        _tile_loadd(4, a + step * DEPTH, bytes);
        _tile_dpbf16ps(0, 4, 6);
        _tile_dpbf16ps(1, 4, 7);
      }
      if (below) {
        _tile_loadd(5, b + step * DEPTH, bytes);
        _tile_dpbf16ps(2, 5, 6);
        _tile_dpbf16ps(3, 5, 7);
      }
    }
  }

  // What each step fetches early: all weights that come soon where a block is alone, else its share of the next chunk's.
  struct Fetch {
    int64_t ahead;  // bytes
    int begin, end;  // cache lines
    void operator()(const bf16* w) const {
      const char* bytes = reinterpret_cast<const char*>(w) + ahead;
      for (int line = begin; line < end; ++line) _mm_prefetch(bytes + line * 64, _MM_HINT_T1);
    }
  };
  Fetch soon(int64_t block, int64_t pair) const {
    const bool all = last - first == 1 || (block == first && pair < from + CHUNK);
    return {AHEAD, 0, all ? LINES : 0};
  }
  Fetch later(int64_t block) const {
    const int64_t blocks = last - first, number = block - first;
    if (blocks == 1) return {0, 0, 0};
    return {int64_t(CHUNK * steps * STEP * sizeof(bf16)), int(LINES * number / blocks), int(LINES * (number + 1) / blocks)};
  }

  // Finishes a few rows of the latest sums: vectors have time for it while the tiles multiply.
  void finish_some(int count) {
    for (; count > 0 && next < stop; --count, ++next) finish(done_rows[next / SIDE] + next, done_pair, done[next]);
  }

  const Finish& finish;
  const int64_t first, last, from, to;
  alignas(64) float sums[CHUNK][2 * SIDE][2 * SIDE];
  float (*done)[2 * SIDE] = nullptr;  // the latest whole sums, and where their rows are: those before `next` are finished
  int64_t done_pair = 0, done_rows[2] = {};
  int next = 0, stop = 0;
};

// Threads share the pairs, so that each reads its part of the weights once; where pairs are few, also the rows.
template <class Finish>
void multiply(const Operands& operands, int64_t pairs, const Finish& finish, int threads) {
  if (operands.rows == 0) return;
  const int64_t blocks = (operands.rows + 2 * SIDE - 1) / (2 * SIDE);
  const int64_t groups = std::clamp<int64_t>(2 * threads / pairs, 1, blocks);
  const int64_t parts = std::min<int64_t>(threads, pairs);
#pragma omp parallel for collapse(2) num_threads(threads) schedule(static) if (threads > 1)
  for (int64_t part = 0; part < parts; ++part)
    for (int64_t group = 0; group < groups; ++group) {
      const Tiles tiles(int(std::min<int64_t>(operands.rows, SIDE)));
      Product<Finish>(operands, finish, blocks * group / groups, blocks * (group + 1) / groups, pairs * part / parts,
                      pairs * (part + 1) / parts)
          .run();
    }
}

// A weight in tiles, with its bias. The layout of this structure is that of `products.py`.
struct Weights {
  const bf16 *weight, *bias;  // bias: [columns] or null
  int64_t depth, pairs, step, apart;
};

// out[rows, 32 pairs] = x[rows, depth] W' + b, and what `additions` add; rows of x lie `stride` apart.
inline void multiply(bf16* out, const bf16* x, int64_t stride, int64_t rows, const Weights& w, int threads,
                     const std::vector<Addition>* additions = nullptr) {
  const Write write{out, w.bias, w.pairs * 2 * SIDE, w.step, w.apart};
  multiply({x, stride, w.weight, rows, w.depth / DEPTH, additions}, w.pairs, write, threads);
}

// out[rows, 16 pairs]: silu of the first half of all columns, times the second.
inline void multiply_gated(bf16* out, const bf16* x, int64_t stride, int64_t rows, const Weights& w, int threads,
                           const std::vector<Addition>* additions = nullptr) {
  multiply({x, stride, w.weight, rows, w.depth / DEPTH, additions}, w.pairs, WriteGated{out, w.bias, w.pairs * SIDE}, threads);
}

}  // namespace
#endif
