// What attention on matrix tiles is made of: where keys and values are, scores, and weights.
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
      first_[tile] = here == LANES ? at[tile * LANES] : here ? last_[0] : ZEROS;
      bytes_[tile] = here == LANES ? stride * int64_t(sizeof(bf16)) : here ? int64_t(sizeof last_[0]) : 0;
      if (here == LANES || here == 0) continue;
      for (int j = 0; j < here; ++j) std::memcpy(last_[j], at[tile * LANES + j], width * sizeof(bf16));
      std::memset(last_[here], 0, sizeof last_[0] * (LANES - here));
    }
  }
  // c[KEYS][16 rows] of tiles 0 to 3 += 32 dimensions of keys and of `queries`, which are pairs of dimensions.
  void multiply(int dimension, const uint32_t (*queries)[LANES]) const {
    _tile_loadd(4, queries, 64);
    _tile_loadd(5, first_[0] + dimension, bytes_[0]);
    _tile_dpbf16ps(0, 5, 4);
    _tile_loadd(6, first_[1] + dimension, bytes_[1]);
    _tile_dpbf16ps(1, 6, 4);
    _tile_loadd(5, first_[2] + dimension, bytes_[2]);
    _tile_dpbf16ps(2, 5, 4);
    _tile_loadd(6, first_[3] + dimension, bytes_[3]);
    _tile_dpbf16ps(3, 6, 4);
  }

 private:
  static constexpr bf16 ZEROS[WIDTH] = {};
  const bf16* first_[KEYS / LANES];
  int64_t bytes_[KEYS / LANES];
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

}  // namespace

#endif
