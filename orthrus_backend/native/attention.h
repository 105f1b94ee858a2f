// Paged attention of a piece of a slice: causal, with windows and capped scores.
#pragma once

#include <type_traits>

#include "vectors.h"

namespace {

constexpr int KEYS = 64;   // keys looked at together, on borders that depend on positions only
constexpr int ROWS = 4;    // rows of a register tile
constexpr int TILE = 64;   // (token, head) pairs that share a pass over the keys
constexpr int FEW = 8;     // pairs of a slice below which transposing the keys does not pay

// One slice of the batch: where its rows are, what comes before them, and where its keys are.
struct Item {
  int64_t first;   // row of its first token
  int64_t rows;    // tokens
  int64_t offset;  // position of its first token
  int64_t table;   // where its blocks begin in `blocks`; -1: its keys are the batch's own rows
};

template <class T>
struct Attention {
  T* out;
  const T *query, *key, *value;                       // [T, *, dim] with these row strides
  int64_t query_stride, key_stride, value_stride;
  const T *key_cache, *value_cache;                   // [slots, kv_heads, dim]
  const int32_t* blocks;
  int block_size, heads, kv_heads, dim, window;
  float scale, softcap;

  int group() const { return heads / kv_heads; }

  const T* query_row(const Item& item, int64_t token, int head) const {
    return query + (item.first + token) * query_stride + int64_t(head) * dim;
  }
  // Where the rows of one head at positions `start` to `start + n` are.
  void rows(const T** at, const T* cache, const T* batch, int64_t stride, const Item& item, int head, int64_t start,
            int n) const {
    if (item.table < 0) {
      const T* first = batch + (item.first + start) * stride + int64_t(head) * dim;
      for (int j = 0; j < n; ++j) at[j] = first + j * stride;
      return;
    }
    const int32_t* block = blocks + item.table + start / block_size;
    for (int j = 0, inside = int(start % block_size); j < n; ++block, inside = 0)
      for (; j < n && inside < block_size; ++j, ++inside)
        at[j] = cache + ((int64_t(*block) * block_size + inside) * kv_heads + head) * dim;
  }
  void key_rows(const T** at, const Item& item, int head, int64_t start, int n) const {
    rows(at, key_cache, key, key_stride, item, head, start, n);
  }
  // Numbers from one key to the next, within a block.
  int64_t key_step(const Item& item) const { return item.table < 0 ? key_stride : int64_t(kv_heads) * dim; }
  void value_rows(const T** at, const Item& item, int head, int64_t start, int n) const {
    rows(at, value_cache, value, value_stride, item, head, start, n);
  }
  int64_t oldest(int64_t position) const { return window > 0 ? std::max<int64_t>(0, position - window + 1) : 0; }

  void cap(float* scores, int n) const {
    if (softcap > 0) each(scores, n, [this](vf s) { return capped(s); });
  }
  vf capped(vf s) const {
    if (softcap <= 0) return s;
    const vf t = exponential(s * (2 / softcap));
    return softcap * (1 - 2 / (t + 1));  // c * tanh(s / c)
  }

  // Turns scores [n] into weights relative to the running maximum; returns what earlier sums are multiplied by.
  static float weigh(float* scores, int n, float& highest, float& total) {
    float top = scores[0];
    for (int i = 1; i < n; ++i) top = scores[i] > top ? scores[i] : top;
    const float before = highest;
    highest = std::max(before, top);
    const vf shift = splat(highest);
    each(scores, n, [shift](vf s) { return exponential(s - shift); });
    vf sums{};
    int i = 0;
    for (; i + W <= n; i += W) sums += load(scores + i);
    float added = sum(sums);
    for (; i < n; ++i) added += scores[i];
    const float factor = before == -INFINITY ? 0.0f : std::exp(before - highest);
    total = total * factor + added;
    return factor;
  }

  // scores[R][n] = queries[R][D] of the keys: a key's products stay in vectors, and a vector's width of them is summed at once.
  template <int D, int R>
  static void dots(const T* const* keys, int n, const float (*queries)[D], float (*scores)[KEYS]) {
    alignas(64) float parts[R][W][W];
    for (int start = 0; start < n; start += W) {
      const int count = std::min(W, n - start);
      for (int j = 0; j < count; ++j) {
        vf sums[R] = {};
        for (int d = 0; d < D; d += W) {
          const vf k = load(keys[start + j] + d);
          for (int r = 0; r < R; ++r) sums[r] += k * load(queries[r] + d);
        }
        for (int r = 0; r < R; ++r) store(parts[r][j], sums[r]);
      }
      for (int j = count; j < W; ++j)
        for (int r = 0; r < R; ++r) store(parts[r][j], vf{});
      for (int r = 0; r < R; ++r) store(scores[r] + start, totals(parts[r]));
    }
  }

  // sums[R][D] += weights[R][n] of the values, some columns at a time, in registers.
  template <int D, int R>
  static void weighted(const T* const* values, int n, const float (*weights)[KEYS], float (*sums)[D]) {
    constexpr int MOST = W == 16 ? 4 : 2;
    constexpr int STEP = D % (MOST * W) == 0 ? MOST : D % (2 * W) == 0 ? 2 : 1;
    for (int column = 0; column < D; column += STEP * W) {
      vf acc[R][STEP];
      for (int r = 0; r < R; ++r)
        for (int s = 0; s < STEP; ++s) acc[r][s] = load(sums[r] + column + s * W);
      for (int j = 0; j < n; ++j) {
        vf v[STEP];
        for (int s = 0; s < STEP; ++s) v[s] = load(values[j] + column + s * W);
        for (int r = 0; r < R; ++r)
          for (int s = 0; s < STEP; ++s) acc[r][s] += v[s] * weights[r][j];
      }
      for (int r = 0; r < R; ++r)
        for (int s = 0; s < STEP; ++s) store(sums[r] + column + s * W, acc[r][s]);
    }
  }

  // Calls f(row, std::integral_constant of rows) for all rows, ROWS at a time.
  template <class F>
  static void by_rows(int rows, F f) {
    int r = 0;
    for (; r + 4 <= rows; r += 4) f(r, std::integral_constant<int, 4>{});
    switch (rows - r) {
      case 3: f(r, std::integral_constant<int, 3>{}); break;
      case 2: f(r, std::integral_constant<int, 2>{}); break;
      case 1: f(r, std::integral_constant<int, 1>{}); break;
    }
  }

  // A few rows of one head group: keys and values are used where they lie.
  template <int D>
  void few(const Item& item, int head, int64_t first, int64_t last) const {
    const int g = group();
    alignas(64) float queries[FEW][D], sums[FEW][D], scores[FEW][KEYS];
    float highest[FEW], total[FEW];
    const T *keys[KEYS], *values[KEYS];
    const int rows = int(last - first) * g;
    for (int r = 0; r < rows; ++r) {
      const T* q = query_row(item, first + r / g, head * g + r % g);
      for (int d = 0; d < D; d += W) {
        store(queries[r] + d, load(q + d) * scale);
        store(sums[r] + d, vf{});
      }
      highest[r] = -INFINITY;
      total[r] = 0;
    }
    const int64_t end = item.offset + last;
    for (int64_t start = oldest(item.offset + first) / KEYS * KEYS; start < end; start += KEYS) {
      const int n = int(std::min<int64_t>(KEYS, end - start));
      key_rows(keys, item, head, start, n);
      value_rows(values, item, head, start, n);
      by_rows(rows, [&](int r, auto R) { dots<D, R>(keys, n, queries + r, scores + r); });
      for (int r = 0; r < rows; ++r) weigh_row<D>(scores[r], sums[r], item.offset + first + r / g, start, n, highest[r], total[r]);
      by_rows(rows, [&](int r, auto R) { weighted<D, R>(values, n, scores + r, sums + r); });
    }
    finish<D>(item, head, first, rows, sums, total);
  }

  // Scores [KEYS] of the keys from `start` on to weights, 0 for those that the row at `position` does not see; what was
  // summed so far shrinks accordingly.
  template <int D>
  void weigh_row(float* scores, float* sums, int64_t position, int64_t start, int n, float& highest, float& total) const {
    const int low = int(std::clamp<int64_t>(oldest(position) - start, 0, n));
    const int high = int(std::clamp<int64_t>(position + 1 - start, low, n));
    std::fill(scores, scores + low, 0.0f);
    std::fill(scores + high, scores + KEYS, 0.0f);
    if (low == high) return;
    cap(scores + low, high - low);
    const float factor = weigh(scores + low, high - low, highest, total);
    for (int d = 0; d < D; d += W) store(sums + d, load(sums + d) * factor);
  }

  // Many rows of one head group: keys are transposed once, then products run in register tiles.
  template <int D>
  void many(const Item& item, int head, int64_t first, int64_t last) const {
    const int g = group();
    alignas(64) float queries[TILE][D], sums[TILE][D], scores[TILE][KEYS], keys[D][KEYS], values[KEYS][D];
    float highest[TILE], total[TILE];
    const T *key_at[KEYS], *value_at[KEYS];
    const int rows = int(last - first) * g;
    const int padded = (rows + ROWS - 1) / ROWS * ROWS;
    std::memset(queries, 0, sizeof(float) * D * padded);
    std::memset(sums, 0, sizeof(float) * D * padded);
    for (int r = 0; r < rows; ++r) {
      const T* q = query_row(item, first + r / g, head * g + r % g);
      for (int d = 0; d < D; d += W) store(queries[r] + d, load(q + d) * scale);
      highest[r] = -INFINITY;
      total[r] = 0;
    }
    const int64_t end = item.offset + last;
    for (int64_t start = oldest(item.offset + first) / KEYS * KEYS; start < end; start += KEYS) {
      const int n = int(std::min<int64_t>(KEYS, end - start));
      key_rows(key_at, item, head, start, n);
      value_rows(value_at, item, head, start, n);
      for (int j = 0; j < n; ++j) {
        for (int d = 0; d < D; ++d) keys[d][j] = one(key_at[j] + d);
        for (int d = 0; d < D; d += W) store(values[j] + d, load(value_at[j] + d));
      }
      for (int j = n; j < KEYS; ++j) {
        for (int d = 0; d < D; ++d) keys[d][j] = 0;
        std::memset(values[j], 0, sizeof values[j]);
      }
      for (int r = 0; r < padded; r += ROWS) products<D, KEYS>(&queries[r][0], D, &keys[0][0], &scores[r][0], false);
      for (int r = 0; r < rows; ++r) weigh_row<D>(scores[r], sums[r], item.offset + first + r / g, start, n, highest[r], total[r]);
      for (int r = 0; r < padded; r += ROWS) products<KEYS, D>(&scores[r][0], KEYS, &values[0][0], &sums[r][0], true);
    }
    finish<D>(item, head, first, rows, sums, total);
  }

  // c[ROWS][N] (+)= a[ROWS][K] b[K][N], all in registers for 2 W columns at a time.
  template <int K, int N>
  static void products(const float* a, int stride, const float* b, float* c, bool add) {
    constexpr int STEP = N % (2 * W) == 0 ? 2 : 1;
    for (int column = 0; column < N; column += STEP * W) {
      vf acc[ROWS][STEP];
      for (int r = 0; r < ROWS; ++r)
        for (int s = 0; s < STEP; ++s) acc[r][s] = add ? load(c + r * N + column + s * W) : vf{};
      for (int k = 0; k < K; ++k) {
        vf right[STEP];
        for (int s = 0; s < STEP; ++s) right[s] = load(b + k * N + column + s * W);
        for (int r = 0; r < ROWS; ++r)
          for (int s = 0; s < STEP; ++s) acc[r][s] += a[r * stride + k] * right[s];
      }
      for (int r = 0; r < ROWS; ++r)
        for (int s = 0; s < STEP; ++s) store(c + r * N + column + s * W, acc[r][s]);
    }
  }

  template <int D>
  void finish(const Item& item, int head, int64_t first, int rows, const float (*sums)[D], const float* total) const {
    const int g = group();
    for (int r = 0; r < rows; ++r) {
      T* o = out + ((item.first + first + r / g) * heads + head * g + r % g) * D;
      for (int d = 0; d < D; d += W) store(o + d, load(sums[r] + d) / total[r]);
    }
  }
};

}  // namespace
