// Paged attention: chunks and decodes, causal, with windows and capped scores.
#pragma once

#include <vector>

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

  const T* row(const T* cache, const T* batch, int64_t stride, const Item& item, int head, int64_t position) const {
    if (item.table < 0) return batch + (item.first + position) * stride + int64_t(head) * dim;
    const int64_t slot = int64_t(blocks[item.table + position / block_size]) * block_size + position % block_size;
    return cache + (slot * kv_heads + head) * dim;
  }
  const T* key_row(const Item& item, int head, int64_t position) const {
    return row(key_cache, key, key_stride, item, head, position);
  }
  const T* value_row(const Item& item, int head, int64_t position) const {
    return row(value_cache, value, value_stride, item, head, position);
  }
  int64_t oldest(int64_t position) const { return window > 0 ? std::max<int64_t>(0, position - window + 1) : 0; }

  void cap(float* scores, int n) const {
    if (softcap <= 0) return;
    each(scores, n, [this](vf s) {
      const vf t = exponential(s * (2 / softcap));
      return softcap * (1 - 2 / (t + 1));  // c * tanh(s / c)
    });
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

  // A few rows of one head group: every key is read once, as a dot product with each row.
  template <int D>
  void few(const Item& item, int head, int64_t first, int64_t last) const {
    const int g = group();
    float queries[FEW][D], sums[FEW][D], scores[FEW][KEYS], highest[FEW], total[FEW];
    const int rows = int(last - first) * g;
    for (int r = 0; r < rows; ++r) {
      const T* q = query + (item.first + first + r / g) * query_stride + int64_t(head * g + r % g) * D;
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
      for (int j = 0; j < n; ++j) {
        const T* k = key_row(item, head, start + j);
        for (int r = 0; r < rows; ++r) {
          vf a{}, b{};
          for (int d = 0; d < D; d += 2 * W) {
            a += load(k + d) * load(queries[r] + d);
            if (d + W < D) b += load(k + d + W) * load(queries[r] + d + W);
          }
          scores[r][j] = sum(a + b);
        }
      }
      int low[FEW], high[FEW];
      for (int r = 0; r < rows; ++r) {
        const int64_t position = item.offset + first + r / g;
        low[r] = int(std::clamp<int64_t>(oldest(position) - start, 0, n));
        high[r] = int(std::clamp<int64_t>(position + 1 - start, 0, n));
        if (low[r] >= high[r]) continue;
        cap(scores[r] + low[r], high[r] - low[r]);
        const float factor = weigh(scores[r] + low[r], high[r] - low[r], highest[r], total[r]);
        for (int d = 0; d < D; d += W) store(sums[r] + d, load(sums[r] + d) * factor);
      }
      for (int j = 0; j < n; ++j) {
        const T* v = value_row(item, head, start + j);
        for (int r = 0; r < rows; ++r) {
          if (j < low[r] || j >= high[r]) continue;
          const float weight = scores[r][j];
          for (int d = 0; d < D; d += W) store(sums[r] + d, load(sums[r] + d) + load(v + d) * weight);
        }
      }
    }
    finish<D>(item, head, first, rows, sums, total);
  }

  // Many rows of one head group: keys are transposed once, then products run in register tiles.
  template <int D>
  void many(const Item& item, int head, int64_t first, int64_t last) const {
    const int g = group();
    alignas(64) float queries[TILE][D], sums[TILE][D], scores[TILE][KEYS], keys[D][KEYS], values[KEYS][D];
    float highest[TILE], total[TILE];
    const int rows = int(last - first) * g;
    const int padded = (rows + ROWS - 1) / ROWS * ROWS;
    std::memset(queries, 0, sizeof(float) * D * padded);
    std::memset(sums, 0, sizeof(float) * D * padded);
    for (int r = 0; r < rows; ++r) {
      const T* q = query + (item.first + first + r / g) * query_stride + int64_t(head * g + r % g) * D;
      for (int d = 0; d < D; d += W) store(queries[r] + d, load(q + d) * scale);
      highest[r] = -INFINITY;
      total[r] = 0;
    }
    const int64_t end = item.offset + last;
    for (int64_t start = oldest(item.offset + first) / KEYS * KEYS; start < end; start += KEYS) {
      const int n = int(std::min<int64_t>(KEYS, end - start));
      for (int j = 0; j < n; ++j) {
        const T* k = key_row(item, head, start + j);
        const T* v = value_row(item, head, start + j);
        for (int d = 0; d < D; ++d) keys[d][j] = one(k + d);
        for (int d = 0; d < D; d += W) store(values[j] + d, load(v + d));
      }
      for (int j = n; j < KEYS; ++j) {
        for (int d = 0; d < D; ++d) keys[d][j] = 0;
        std::memset(values[j], 0, sizeof values[j]);
      }
      for (int r = 0; r < padded; r += ROWS) products<D, KEYS>(&queries[r][0], D, &keys[0][0], &scores[r][0], false);
      for (int r = 0; r < padded; ++r) {
        const int64_t position = item.offset + first + r / g;
        const int low = int(std::clamp<int64_t>(oldest(position) - start, 0, n));
        const int high = r < rows ? int(std::clamp<int64_t>(position + 1 - start, 0, n)) : 0;
        std::fill(scores[r], scores[r] + std::min(low, KEYS), 0.0f);
        std::fill(scores[r] + std::max(high, 0), scores[r] + KEYS, 0.0f);
        if (low >= high) {
          std::fill(scores[r], scores[r] + KEYS, 0.0f);
          continue;
        }
        cap(scores[r] + low, high - low);
        const float factor = weigh(scores[r] + low, high - low, highest[r], total[r]);
        for (int d = 0; d < D; d += W) store(sums[r] + d, load(sums[r] + d) * factor);
      }
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

  template <int D>
  void run(const Item* items, int64_t count, int threads) const {
    struct Work {
      const Item* item;
      int64_t first, last;
    };
    const int64_t tokens = std::max(1, TILE / group());
    std::vector<Work> works;
    for (const Item* item = items; item < items + count; ++item)
      for (int64_t first = item->rows; first > 0; first -= std::min(first, tokens))  // the longest first
        works.push_back({item, std::max<int64_t>(0, first - tokens), first});
    const int64_t units = int64_t(works.size()) * kv_heads;
#pragma omp parallel for num_threads(threads) schedule(dynamic) if (units > 1)
    for (int64_t unit = 0; unit < units; ++unit) {
      const Work& work = works[unit / kv_heads];
      const int head = int(unit % kv_heads);
      if (work.item->rows * group() < FEW)
        few<D>(*work.item, head, work.first, work.last);
      else
        many<D>(*work.item, head, work.first, work.last);
    }
  }
};

template <class T>
int attend(T* out, const T* query, int64_t query_stride, const T* key, int64_t key_stride, const T* value,
           int64_t value_stride, const T* key_cache, const T* value_cache, const int64_t* items, int64_t count,
           const int32_t* blocks, int block_size, int heads, int kv_heads, int dim, int window, float scale,
           float softcap, int threads) {
  const Attention<T> attention{out,    query,  key,      value,      query_stride, key_stride, value_stride,
                               key_cache, value_cache, blocks, block_size, heads, kv_heads, dim, window, scale, softcap};
  if (heads / kv_heads > TILE) return 1;
  const Item* first = reinterpret_cast<const Item*>(items);
  switch (dim) {
    case 16: attention.template run<16>(first, count, threads); return 0;
    case 32: attention.template run<32>(first, count, threads); return 0;
    case 64: attention.template run<64>(first, count, threads); return 0;
    case 80: attention.template run<80>(first, count, threads); return 0;
    case 96: attention.template run<96>(first, count, threads); return 0;
    case 128: attention.template run<128>(first, count, threads); return 0;
    case 256: attention.template run<256>(first, count, threads); return 0;
  }
  return 1;
}

}  // namespace
