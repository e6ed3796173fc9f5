#include "libcore/passes/tensor_divisions.h"

#include <algorithm>
#include <cstring>
#include <numeric>
#include <optional>
#include <set>

#include "libcore/ops/attention.h"
#include "libcore/ops/convert.h"
#include "libcore/ops/elementwise.h"
#include "libcore/ops/embedding.h"
#include "libcore/ops/matmul.h"
#include "libcore/ops/norm.h"
#include "libcore/ops/random.h"
#include "libcore/ops/rms_norm.h"
#include "libcore/ops/rotary.h"
#include "libcore/ops/shape.h"
#include "libcore/passes/patterns.h"

namespace galley {

int64_t TensorDivision::size() const {
  return std::accumulate(blocks.begin(), blocks.end(), int64_t{0}, [](int64_t sum, const Block& block) { return sum + block.size; });
}

std::vector<TensorDivision::Range> TensorDivision::ranges(int rank, int ranks) const {
  std::vector<Range> found;
  int64_t at = 0;
  for (const Block& block : blocks) {
    const int64_t units = block.size / block.unit, most = (units + ranks - 1) / ranks;
    const auto begin = [&](int r) { return at + std::min(units, most * r) * block.unit; };
    found.push_back({begin(rank), begin(rank + 1)});
    at += block.size;
  }
  return found;
}

int64_t TensorDivision::size(int rank, int ranks) const {
  int64_t sum = 0;
  for (const Range& range : this->ranges(rank, ranks)) sum += range.size();
  return sum;
}

Shape TensorDivision::shape(const Shape& whole, int rank, int ranks) const {
  Shape part = whole;
  part[dim] = size(rank, ranks);
  return part;
}

bool TensorDivision::fits(int ranks) const {
  const std::vector<Range> last = this->ranges(ranks - 1, ranks);
  return std::all_of(last.begin(), last.end(), [](const Range& range) { return range.size() > 0; });
}

std::vector<std::vector<TensorDivision::Block>> blocks_of_heads(int arrays, TensorDivision::Block queries, TensorDivision::Block keys,
                                                                TensorDivision::Block values) {
  if (arrays == 1) return {{queries, keys, values}};
  if (arrays == 2) return {{queries}, {keys, values}};
  return {{queries}, {keys}, {values}};
}

namespace {

/// Calls `copy` with the places, in bytes, of a piece of a rank's part and of the whole array, and with the size of the piece.
template <class Copy>
void for_each_piece(const Shape& whole, DType dtype, const TensorDivision& division, int rank, int ranks, const Copy& copy) {
  int64_t outer = 1, inner = dtype_size(dtype);
  for (int d = 0; d < whole.rank(); ++d) (d < division.dim ? outer : inner) *= d == division.dim ? 1 : whole[d];
  const std::vector<TensorDivision::Range> ranges = division.ranges(rank, ranks);
  int64_t at = 0;
  for (int64_t row = 0; row < outer; ++row) {
    for (const TensorDivision::Range& range : ranges) {
      copy(at, (row * whole[division.dim] + range.begin) * inner, range.size() * inner);
      at += range.size() * inner;
    }
  }
}

}  // namespace

Tensor part_of(const Tensor& whole, const TensorDivision& division, int rank, int ranks) {
  const Tensor from = whole.to(MemoryFormat::contiguous());
  Tensor part(whole.dtype(), division.shape(whole.shape(), rank, ranks));
  for_each_piece(whole.shape(), whole.dtype(), division, rank, ranks, [&](int64_t to, int64_t at, int64_t bytes) {
    std::memcpy(static_cast<std::byte*>(part.data()) + to, static_cast<const std::byte*>(from.data()) + at, static_cast<size_t>(bytes));
  });
  return part;
}

void place_part(Tensor& whole, const Tensor& part, const TensorDivision& division, int rank, int ranks) {
  GALLEY_ASSERT(part.shape() == division.shape(whole.shape(), rank, ranks) && part.dtype() == whole.dtype());
  for_each_piece(whole.shape(), whole.dtype(), division, rank, ranks, [&](int64_t from, int64_t at, int64_t bytes) {
    std::memcpy(static_cast<std::byte*>(whole.data()) + at, static_cast<const std::byte*>(part.data()) + from, static_cast<size_t>(bytes));
  });
}

namespace {

/// The rows of a weight that give the values which attention reads.
struct Projection {
  ValueId weight = kNoValue, bias = kNoValue;
  int64_t begin = 0, end = 0;
};

class Planner {
 public:
  Planner(const Graph& graph, int ranks) : graph_(graph), ranks_(ranks), made_by_(graph.producers()), users_(graph.users()) {}

  TensorDivisions run() {
    find_adapters();
    bool found = false;
    for (const Node& node : graph_.nodes()) found = (node.op == &attention_op() && divide_attention(node)) || found;
    if (!found) {
      throw Error(ErrorCode::kRecipe,
                  "tensor parallelism divides the heads of attention, but the model has no attention that it can divide")
          .suggest("use sharding: ddp or fsdp");
    }
    finish_projections();
    divide_vocabulary();
    for (const Node& node : graph_.nodes()) {
      if (node.op == &linear_op()) divide_branch(node);
    }
    divide_adapters();
    return std::move(divisions_);
  }

 private:
  const Node* maker(ValueId id) const {
    const int n = id == kNoValue ? -1 : made_by_[static_cast<size_t>(id)];
    return n < 0 ? nullptr : &graph_.nodes()[static_cast<size_t>(n)];
  }
  bool is_parameter(ValueId id) const { return id != kNoValue && graph_.value(id).role == ValueRole::kParameter; }
  const std::string& name(ValueId id) const { return graph_.value(id).name; }
  bool is_free(ValueId id) const { return is_parameter(id) && divisions_.count(name(id)) == 0; }
  static bool is_elementwise(const Node& node) {
    return find_elementwise(node.op->name) != nullptr || node.op == &dropout_op() || node.op == &cast_op();
  }

  /// The value that reaches `id` through functions of one value.
  ValueId before_functions(ValueId id) const {
    for (const Node* node = maker(id); node != nullptr && is_elementwise(*node); node = maker(id)) {
      if (node->op != &dropout_op() && node->inputs.size() != 1) break;
      id = node->inputs[0];
    }
    return id;
  }

  /// Sums of a layer's result and of an adapter's (LoRA): a second layer over a first one, which reads what the layer does.
  void find_adapters() {
    for (const Node& sum : graph_.nodes()) {
      if (!is_residual_sum(graph_, sum)) continue;
      for (const size_t i : {size_t{0}, size_t{1}}) {
        const Node *base = maker(sum.inputs[i]), *second = maker(sum.inputs[1 - i]);
        if (base == nullptr || second == nullptr || base->op != &linear_op() || second->op != &linear_op()) continue;
        const Node* first = maker(before_functions(second->inputs[0]));
        if (first == nullptr || first->op != &linear_op() || before_functions(first->inputs[0]) != before_functions(base->inputs[0]))
          continue;
        if (!is_parameter(base->inputs[1]) || !is_parameter(first->inputs[1]) || !is_parameter(second->inputs[1])) continue;
        base_of_[sum.outputs[0]] = sum.inputs[i];
        adapters_.push_back({base->inputs[1], first->inputs[1], second->inputs[1]});
        of_adapters_.insert({first->inputs[1], second->inputs[1]});
        break;
      }
    }
  }

  /// The second layer gives the rows that the layer under it does; the first one reads the columns that this reads.
  void divide_adapters() {
    for (const Adapter& adapter : adapters_) {
      const auto base = divisions_.find(name(adapter.base));
      if (base == divisions_.end()) continue;
      divisions_[name(base->second.dim == 0 ? adapter.second : adapter.first)] = {base->second.dim, base->second.blocks};
    }
  }

  /// Whether only adapters read what a node makes.
  bool is_of_adapter(const Node& node) const {
    if (node.op == &linear_op()) return of_adapters_.count(node.inputs[1]) > 0;
    if (!is_elementwise(node) || (node.op != &dropout_op() && node.inputs.size() != 1)) return false;
    const std::vector<int>& users = users_[static_cast<size_t>(node.outputs[0])];
    return std::all_of(users.begin(), users.end(), [&](int user) { return is_of_adapter(graph_.nodes()[static_cast<size_t>(user)]); });
  }

  /// The layers that compute the heads of `id` [N,T,heads,width]; false: they are none that can be divided.
  bool find_projections(ValueId id, std::vector<Projection>& found) const {
    int64_t begin = 0, end = graph_.type(id).shape[2] * graph_.type(id).shape[3];
    const int64_t width = graph_.type(id).shape[3];
    for (const Node* node = maker(id); node != nullptr; node = maker(id)) {
      if (node->op == &linear_op()) {
        if (!is_parameter(node->inputs[1]) || graph_.type(node->inputs[1]).shape.rank() != 2) return false;
        found.push_back({node->inputs[1], node->input(2), begin, end});
        return true;
      }
      if (const auto base = base_of_.find(id); base != base_of_.end()) {
        id = base->second;
        continue;
      }
      const bool norm = node->op == &rms_norm_op() || node->op == &layer_norm_op();
      if (node->op == &slice_op()) {
        const auto& attrs = node->attrs<SliceAttrs>();
        const Shape& from = graph_.type(node->inputs[0]).shape;
        const int64_t axis = attrs.axis < 0 ? attrs.axis + from.rank() : attrs.axis;
        // Of heads [N,T,heads,width], or of features [N,T,heads width].
        if (attrs.step != 1 || axis != 2) return false;
        const int64_t skipped = attrs.range(from[2])[0] * (from.rank() == 4 ? width : 1);
        begin += skipped;
        end += skipped;
      } else if (node->op != &reshape_op() && node->op != &rotary_op() && !norm && !(is_elementwise(*node) && node->inputs.size() == 1)) {
        return false;
      }
      id = node->inputs[0];
    }
    return false;
  }

  bool divide_attention(const Node& node) {
    const auto type = [&](size_t i) { return node.input(i) == kNoValue ? nullptr : &graph_.type(node.input(i)); };
    const AttentionShape s = attention_shape(node.attrs<AttentionAttrs>(), *type(0), type(1), type(2));
    // Of each array: the sizes of its parts, and the features that stay together.
    const TensorDivision::Block q{s.heads * s.width, s.group() * s.width}, k{s.kv_heads * s.width, s.width},
        v{s.kv_heads * s.value_width, s.value_width};
    const std::vector<std::vector<TensorDivision::Block>> parts = blocks_of_heads(s.arrays, q, k, v);
    std::vector<std::vector<Projection>> found(parts.size());
    for (size_t i = 0; i < parts.size(); ++i) {
      if (!find_projections(node.inputs[i], found[i])) return false;
    }
    if (s.kv_heads % ranks_ != 0) {
      throw Error(ErrorCode::kRecipe, cat("the attention ", node.path, " has ", s.heads, " heads",
                                          s.kv_heads < s.heads ? cat(", and ", s.kv_heads, " of keys and values") : "", ", which ", ranks_,
                                          " ranks cannot divide equally"))
          .suggest(cat("use a number of ranks that divides ", s.kv_heads));
    }
    for (size_t i = 0; i < parts.size(); ++i) {
      for (const Projection& each : found[i]) {
        int64_t at = each.begin;
        for (const TensorDivision::Block& block : parts[i]) {
          for (const ValueId id : {each.weight, each.bias}) {
            if (id != kNoValue) rows_[id][at] = block;
          }
          at += block.size;
        }
      }
    }
    divide_reader(node.outputs[0], {s.heads * s.value_width, s.group() * s.value_width});
    return true;
  }

  /// The layer that reads the result of attention is divided by columns.
  void divide_reader(ValueId id, const TensorDivision::Block& block) {
    for (;;) {
      std::vector<int> users = users_[static_cast<size_t>(id)];
      std::erase_if(users, [&](int user) { return is_of_adapter(graph_.nodes()[static_cast<size_t>(user)]); });
      if (users.size() != 1) return;
      const Node& user = graph_.nodes()[static_cast<size_t>(users.front())];
      if (user.op == &linear_op()) {
        if (user.inputs[0] == id && is_free(user.inputs[1])) divisions_[name(user.inputs[1])] = {1, {block}};
        return;
      }
      if (user.op != &reshape_op()) return;
      id = user.outputs[0];
    }
  }

  /// The parts of projections must cover their weights.
  void finish_projections() {
    for (const auto& [id, parts] : rows_) {
      TensorDivision division;
      int64_t at = 0;
      for (const auto& [begin, block] : parts) {
        if (begin != at) break;
        division.blocks.push_back(block);
        at += block.size;
      }
      if (at == graph_.type(id).shape[0]) divisions_.emplace(name(id), division);
    }
  }

  void divide_vocabulary() {
    std::optional<ValueId> table;
    for (const Node& node : graph_.nodes()) {
      if (!selects_rows(*node.op) || !is_parameter(node.inputs[0])) continue;
      const auto is_head = [&](const Node& other) {
        return other.op == &linear_op() && is_free(other.inputs[1]) &&
               (other.inputs[1] == node.inputs[0] || graph_.type(other.inputs[1]).shape == graph_.type(node.inputs[0]).shape);
      };
      if (std::any_of(graph_.nodes().begin(), graph_.nodes().end(), is_head)) table = node.inputs[0];
      if (table) break;
    }
    if (!table) return;
    const int64_t rows = graph_.type(*table).shape[0];
    const TensorDivision by_rows{0, {{rows, 1}}};
    if (!by_rows.fits(ranks_)) return;
    divisions_[name(*table)] = by_rows;
    for (const Node& node : graph_.nodes()) {
      if (node.op != &linear_op() || !is_parameter(node.inputs[1]) || graph_.type(node.inputs[1]).shape[0] != rows) continue;
      if (node.inputs[1] != *table && !is_free(node.inputs[1])) continue;
      divisions_[name(node.inputs[1])] = by_rows;
      if (is_parameter(node.input(2))) divisions_[name(node.input(2))] = by_rows;
    }
  }

  /// The layers whose results reach `id` through element-wise functions alone; false: other values do too.
  bool find_layers(ValueId id, std::set<const Node*>& layers) const {
    if (const auto base = base_of_.find(id); base != base_of_.end()) return find_layers(base->second, layers);
    const Node* node = maker(id);
    if (node == nullptr) return false;
    if (node->op == &linear_op()) {
      layers.insert(node);
      return is_free(node->inputs[1]);
    }
    if (!is_elementwise(*node)) return false;
    const size_t values = node->op == &dropout_op() ? 1 : node->inputs.size();
    for (size_t i = 0; i < values; ++i) {
      if (node->inputs[i] != kNoValue && !find_layers(node->inputs[i], layers)) return false;
    }
    return true;
  }

  void divide_branch(const Node& second) {
    if (!is_free(second.inputs[1]) || graph_.type(second.inputs[1]).shape.rank() != 2 || of_adapters_.count(second.inputs[1]) > 0) return;
    std::set<const Node*> first;
    const Node* before = maker(second.inputs[0]);
    if (before == nullptr || before->op == &linear_op() || !find_layers(second.inputs[0], first)) return;
    const TensorDivision::Block features{graph_.type(second.inputs[1]).shape[1], 1};
    const TensorDivision rows{0, {features}};
    const bool whole = std::all_of(first.begin(), first.end(), [&](const Node* layer) {
      return graph_.type(layer->inputs[1]).shape[0] == features.size && layer->inputs[1] != second.inputs[1];
    });
    if (!whole || !rows.fits(ranks_)) return;
    divisions_[name(second.inputs[1])] = {1, {features}};
    for (const Node* layer : first) {
      divisions_[name(layer->inputs[1])] = rows;
      if (is_parameter(layer->input(2))) divisions_[name(layer->input(2))] = rows;
    }
  }

  /// Weights.
  struct Adapter {
    ValueId base = kNoValue, first = kNoValue, second = kNoValue;
  };

  const Graph& graph_;
  int ranks_;
  std::vector<Adapter> adapters_;
  std::set<ValueId> of_adapters_;
  std::map<ValueId, ValueId> base_of_;  // the result of the layer, by its sum with the adapter's
  std::vector<int> made_by_;
  std::vector<std::vector<int>> users_;
  std::map<ValueId, std::map<int64_t, TensorDivision::Block>> rows_;  // of projections: parts by their first rows
  TensorDivisions divisions_;
};

}  // namespace

TensorDivisions tensor_divisions(const Graph& graph, int ranks) { return Planner(graph, ranks).run(); }

}  // namespace galley
