// Attention of bfloat16 rows with matrix tiles: of many rows of one head group, or of a decode's one row of several.
//
// Scores are computed with the keys as rows, so that keys are read where they lie and a vector holds one key's scores for
// 16 rows: maxima and sums need no look across lanes. Weights are turned around on their way to the second product.
#pragma once

#include "attention.h"
#include "tiles.h"

#if HAS_TILES

namespace {

// A 16 x 16 matrix of 32-bit numbers, a row in each vector, turned around.
inline void transpose(__m512i (&x)[16]) {
  __m512i y[16];
  for (int i = 0; i < 16; i += 2) {
    y[i] = _mm512_unpacklo_epi32(x[i], x[i + 1]);
    y[i + 1] = _mm512_unpackhi_epi32(x[i], x[i + 1]);
  }
  for (int i = 0; i < 16; i += 4) {
    x[i] = _mm512_unpacklo_epi64(y[i], y[i + 2]);
    x[i + 1] = _mm512_unpackhi_epi64(y[i], y[i + 2]);
    x[i + 2] = _mm512_unpacklo_epi64(y[i + 1], y[i + 3]);
    x[i + 3] = _mm512_unpackhi_epi64(y[i + 1], y[i + 3]);
  }
  for (int i = 0; i < 16; i += 8)
    for (int j = i; j < i + 4; ++j) {
      y[j] = _mm512_shuffle_i32x4(x[j], x[j + 4], 0x88);
      y[j + 4] = _mm512_shuffle_i32x4(x[j], x[j + 4], 0xdd);
    }
  for (int j = 0; j < 8; ++j) {
    x[j] = _mm512_shuffle_i32x4(y[j], y[j + 8], 0x88);
    x[j + 8] = _mm512_shuffle_i32x4(y[j], y[j + 8], 0xdd);
  }
}

// Lanes of 16 bits that put the first (or second) halves of two vectors side by side: a0 b0 a1 b1 ...
template <bool SECOND>
inline __m512i side_by_side() {
  alignas(64) uint16_t lanes[32];
  for (int i = 0; i < 32; ++i) lanes[i] = uint16_t(i / 2 + i % 2 * 32 + SECOND * 16);
  return _mm512_load_si512(lanes);
}

constexpr int LANES = 16;  // rows of a tile, and numbers in a vector
static_assert(KEYS == 4 * LANES);

// Where KEYS keys are, in tiles; behind the last there are zeros.
template <int WIDTH>
class KeyTiles {
 public:
  // `at`: of the first `n` keys, of `width` numbers each, `stride` from one to the next within a tile.
  void find(const bf16* const* at, int n, int64_t stride, int width = WIDTH) {
    for (int tile = 0; tile < KEYS / LANES; ++tile) {
      const int here = std::clamp(n - tile * LANES, 0, LANES);
      first[tile] = here == LANES ? at[tile * LANES] : here ? last_[0] : ZEROS;
      bytes[tile] = here == LANES ? stride * int64_t(sizeof(bf16)) : here ? int64_t(sizeof last_[0]) : 0;
      if (here == LANES || here == 0) continue;
      for (int j = 0; j < here; ++j) std::memcpy(last_[j], at[tile * LANES + j], width * sizeof(bf16));
      std::memset(last_[here], 0, sizeof last_[0] * (LANES - here));
    }
  }
  // c[KEYS][16 rows] of tiles 0 to 3 += 32 dimensions of keys and of `queries`, which are pairs of dimensions.
  void multiply(int dimension, const uint32_t (*queries)[LANES]) const {
    _tile_loadd(4, queries, 64);
    _tile_loadd(5, first[0] + dimension, bytes[0]);
    _tile_dpbf16ps(0, 5, 4);
    _tile_loadd(6, first[1] + dimension, bytes[1]);
    _tile_dpbf16ps(1, 6, 4);
    _tile_loadd(5, first[2] + dimension, bytes[2]);
    _tile_dpbf16ps(2, 5, 4);
    _tile_loadd(6, first[3] + dimension, bytes[3]);
    _tile_dpbf16ps(3, 6, 4);
  }

 private:
  static constexpr bf16 ZEROS[WIDTH] = {};
  const bf16* first[KEYS / LANES];
  int64_t bytes[KEYS / LANES];
  alignas(64) bf16 last_[LANES][WIDTH];
};

// 16 rows that share their keys: where the maximum and the sum of each stand, and its weights of the latest keys.
class Softmax {
 public:
  alignas(64) float scores[KEYS][LANES];
  alignas(64) bf16 weights[LANES][KEYS];
  vf total;

  void begin() {
    highest_ = splat(-INFINITY);
    total = vf{};
  }
  static void clear() {
    written();
    _tile_zero(0);
    _tile_zero(1);
    _tile_zero(2);
    _tile_zero(3);
  }
  void take() {
    _tile_stored(0, scores[0], 64);
    _tile_stored(1, scores[LANES], 64);
    _tile_stored(2, scores[2 * LANES], 64);
    _tile_stored(3, scores[3 * LANES], 64);
    written();
  }
  // Scores to weights relative to each row's running maximum; what earlier sums are multiplied by. `change` is what becomes
  // of the scores of the j-th key first.
  template <class F>
  vf weigh(F change) {
    vf top = highest_;
    for (int j = 0; j < KEYS; ++j) {
      const vf s = change(load(scores[j]), j);
      store(scores[j], s);
      top = s > top ? s : top;
    }
    const vf base = top == splat(-INFINITY) ? vf{} : top;  // of rows that have seen nothing yet
    const vf factor = exponential(highest_ - base);
    const __m512i interleaved = _mm512_set_epi16(31, 15, 30, 14, 29, 13, 28, 12, 27, 11, 26, 10, 25, 9, 24, 8, 23, 7, 22,
                                                 6, 21, 5, 20, 4, 19, 3, 18, 2, 17, 1, 16, 0);
    total *= factor;
    for (int half = 0; half < 2; ++half) {
      __m512i pairs[LANES];
      for (int pair = 0; pair < LANES; ++pair) {
        const int j = half * 2 * LANES + 2 * pair;
        const vf even = exponential(load(scores[j]) - base), odd = exponential(load(scores[j + 1]) - base);
        total += even + odd;
        pairs[pair] = _mm512_permutexvar_epi16(interleaved, (__m512i)_mm512_cvtne2ps_pbh((__m512)odd, (__m512)even));
      }
      transpose(pairs);
      for (int lane = 0; lane < LANES; ++lane) _mm512_store_si512(weights[lane] + half * 32, pairs[lane]);
    }
    highest_ = top;
    return factor;
  }

 private:
  vf highest_;
};

// values[KEYS / 2][D], of two keys each; behind the last of `n` there are zeros.
template <int D>
void pair_up(const bf16* const* at, int n, uint32_t (*values)[D]) {
  const __m512i front = side_by_side<false>(), back = side_by_side<true>();
  for (int j = 0; j < n; j += 2)
    for (int d = 0; d < D; d += 32) {
      const __m512i even = _mm512_loadu_si512(at[j] + d);
      const __m512i odd = j + 1 < n ? _mm512_loadu_si512(at[j + 1] + d) : _mm512_setzero_si512();
      _mm512_store_si512(values[j / 2] + d, _mm512_permutex2var_epi16(even, front, odd));
      _mm512_store_si512(values[j / 2] + d + 16, _mm512_permutex2var_epi16(even, back, odd));
    }
  for (int pair = (n + 1) / 2; pair < KEYS / 2; ++pair) std::memset(values[pair], 0, sizeof values[pair]);
}

// sums[16 rows][D] += weights[16 rows][KEYS] values
template <int D>
void add_values(float (*sums)[D], const bf16 (*weights)[KEYS], const uint32_t (*values)[D]) {
  written();
  _tile_loadd(4, weights[0], sizeof weights[0]);
  _tile_loadd(5, weights[0] + 32, sizeof weights[0]);
  for (int d = 0; d < D; d += 32) {
    _tile_loadd(0, sums[0] + d, sizeof sums[0]);
    _tile_loadd(6, values[0] + d, sizeof values[0]);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(1, sums[0] + d + 16, sizeof sums[0]);
    _tile_loadd(7, values[0] + d + 16, sizeof values[0]);
    _tile_dpbf16ps(1, 4, 7);
    _tile_loadd(2, values[LANES] + d, sizeof values[0]);
    _tile_dpbf16ps(0, 5, 2);
    _tile_loadd(3, values[LANES] + d + 16, sizeof values[0]);
    _tile_dpbf16ps(1, 5, 3);
    _tile_stored(0, sums[0] + d, sizeof sums[0]);
    _tile_stored(1, sums[0] + d + 16, sizeof sums[0]);
  }
  written();
}

// queries[D / 32][16 pairs of dimensions][16 rows]; a row that is nowhere is zeros.
template <int D>
void turn_around(const bf16* const (&at)[LANES], uint32_t (*queries)[LANES][LANES]) {
  for (int depth = 0; depth < D / 32; ++depth) {
    __m512i rows[LANES];
    for (int lane = 0; lane < LANES; ++lane)
      rows[lane] = at[lane] ? _mm512_loadu_si512(at[lane] + depth * 32) : _mm512_setzero_si512();
    transpose(rows);
    for (int pair = 0; pair < LANES; ++pair) _mm512_store_si512(queries[depth][pair], rows[pair]);
  }
}

// Many rows of one head group.
template <int D>
class TiledChunk {
 public:
  TiledChunk(const Attention<bf16>& attention, const Item& item, int head, int64_t first, int64_t last)
      : a_(attention), item_(item), head_(head), first_(first), last_(last), rows_(int(last - first) * a_.group()) {}

  // Needs `Tiles`.
  void run() {
    const int groups = (rows_ + LANES - 1) / LANES;
    for (int group = 0; group < groups; ++group) begin(group);
    const int64_t end = item_.offset + last_;
    for (int64_t start = a_.oldest(item_.offset + first_) / KEYS * KEYS; start < end; start += KEYS) {
      const bf16* at[KEYS];
      const int n = int(std::min<int64_t>(KEYS, end - start));
      a_.key_rows(at, item_, head_, start, n);
      keys_.find(at, n, a_.key_step(item_));
      a_.value_rows(at, item_, head_, start, n);
      pair_up<D>(at, n, values_);
      for (int group = 0; group < groups; ++group)
        if (position(std::min((group + 1) * LANES, rows_) - 1) >= start) look(group, start);
    }
    float total[TILE];
    for (int group = 0; group < groups; ++group) store(total + group * LANES, softmax_[group].total);
    a_.template finish<D>(item_, head_, first_, rows_, sums_, total);
  }

 private:
  int64_t position(int row) const { return item_.offset + first_ + row / a_.group(); }

  void begin(int group) {
    const int g = a_.group();
    const bf16* at[LANES];
    int32_t positions[LANES];
    for (int lane = 0; lane < LANES; ++lane) {
      const int row = group * LANES + lane;
      const bool real = row < rows_;
      positions[lane] = real ? int32_t(position(row)) : -1;
      at[lane] = real ? a_.query_row(item_, first_ + row / g, head_ * g + row % g) : nullptr;
    }
    std::memcpy(&positions_[group], positions, sizeof positions);
    turn_around<D>(at, queries_[group]);
    softmax_[group].begin();
    std::memset(sums_[group * LANES], 0, sizeof(float) * LANES * D);
  }

  // A group's 16 rows at the keys from `start` on.
  void look(int group, int64_t start) {
    Softmax& softmax = softmax_[group];
    softmax.clear();
    for (int depth = 0; depth < D / 32; ++depth) keys_.multiply(depth * 32, queries_[group][depth]);
    softmax.take();
    const vi positions = positions_[group];
    const int64_t oldest = position(group * LANES), latest = position(std::min((group + 1) * LANES, rows_) - 1);
    const bool all = start + KEYS - 1 <= oldest && (group + 1) * LANES <= rows_ && a_.oldest(latest) <= start;
    const vf factor = softmax.weigh([&](vf s, int j) {
      s = a_.capped(s * a_.scale);
      if (all) return s;
      const int32_t key = int32_t(start) + j;
      vi seen = positions >= key;
      if (a_.window > 0) seen &= positions - a_.window < key;
      return seen ? s : splat(-INFINITY);
    });
    float (*sums)[D] = sums_ + group * LANES;
    if (_mm512_cmp_ps_mask((__m512)factor, (__m512)splat(1.0f), _CMP_NEQ_UQ))
      for (int lane = 0; lane < LANES; ++lane)
        for (int d = 0; d < D; d += LANES) store(sums[lane] + d, load(sums[lane] + d) * factor[lane]);
    add_values<D>(sums, softmax.weights, values_);
  }

  const Attention<bf16>& a_;
  const Item& item_;
  const int head_;
  const int64_t first_, last_;
  const int rows_;
  KeyTiles<D> keys_;
  Softmax softmax_[TILE / LANES];
  vi positions_[TILE / LANES];
  alignas(64) uint32_t queries_[TILE / LANES][D / 32][LANES][LANES];
  alignas(64) float sums_[TILE][D];
  alignas(64) uint32_t values_[KEYS / 2][D];
};

// One row of several head groups, whose keys lie side by side. Each lane of a vector is a query head: it is zero where the
// keys of other groups are multiplied, so that one sum over all of them is its scores.
template <int D>
class TiledDecode {
 public:
  static constexpr int MOST = 4;  // groups

  static int groups(const Attention<bf16>& attention) { return std::clamp(LANES / attention.group(), 1, MOST); }
  static bool fits(const Attention<bf16>& attention) { return attention.group() <= LANES; }

  TiledDecode(const Attention<bf16>& attention, const Item& item, int head)
      : a_(attention), item_(item), head_(head), groups_(std::min(groups(a_), a_.kv_heads - head)) {}

  // Needs `Tiles`.
  void run() {
    begin();
    const int64_t end = item_.offset + 1, oldest = a_.oldest(item_.offset);
    for (int64_t start = oldest / KEYS * KEYS; start < end; start += KEYS)
      look(start, int(oldest - start), int(std::min<int64_t>(KEYS, end - start)));
    const int g = a_.group();
    for (int lane = 0; lane < groups_ * g; ++lane) {
      bf16* o = a_.out + (item_.first * a_.heads + head_ * g + lane) * D;
      const float total = softmax_.total[lane];
      for (int d = 0; d < D; d += LANES) store(o + d, load(sums_[lane / g][lane] + d) / total);
    }
  }

 private:
  void begin() {
    const int g = a_.group();
    for (int group = 0; group < groups_; ++group) {
      const bf16* at[LANES] = {};
      for (int r = 0; r < g; ++r) at[group * g + r] = a_.query_row(item_, 0, (head_ + group) * g + r);
      turn_around<D>(at, queries_[group]);
      std::memset(sums_[group], 0, sizeof sums_[group]);
    }
    softmax_.begin();
  }

  // The keys from `start` on, of which those from `low` to `n` are seen.
  void look(int64_t start, int low, int n) {
    const bf16* at[KEYS];
    a_.key_rows(at, item_, head_, start, n);
    keys_.find(at, n, a_.key_step(item_), groups_ * D);
    softmax_.clear();
    for (int group = 0; group < groups_; ++group)
      for (int depth = 0; depth < D / 32; ++depth) keys_.multiply(group * D + depth * 32, queries_[group][depth]);
    softmax_.take();
    const vf factor = softmax_.weigh(
        [&](vf s, int j) { return j >= low && j < n ? a_.capped(s * a_.scale) : splat(-INFINITY); });
    const int g = a_.group();
    for (int group = 0; group < groups_; ++group) {
      for (int lane = group * g; lane < (group + 1) * g; ++lane)
        for (int d = 0; d < D; d += LANES) store(sums_[group][lane] + d, load(sums_[group][lane] + d) * factor[lane]);
      a_.value_rows(at, item_, head_ + group, start, n);
      pair_up<D>(at, n, values_);
      add_values<D>(sums_[group], softmax_.weights, values_);
    }
  }

  const Attention<bf16>& a_;
  const Item& item_;
  const int head_, groups_;
  KeyTiles<MOST * D> keys_;
  Softmax softmax_;
  alignas(64) uint32_t queries_[MOST][D / 32][LANES][LANES];
  alignas(64) float sums_[MOST][LANES][D];  // of the lanes of other groups: nothing
  alignas(64) uint32_t values_[KEYS / 2][D];
};

}  // namespace

#endif
