// Attention of bfloat16 rows with matrix tiles: of many rows of one head group, or of a decode's one row of several.
#pragma once

#include "attention_parts.h"

#if HAS_TILES

namespace {

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
