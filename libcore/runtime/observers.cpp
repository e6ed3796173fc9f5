#include <algorithm>
#include <chrono>
#include <cmath>

#include "libcore/runtime/execution.h"

namespace galley {
namespace {

/// The logical index of the element at position `flat` in row-major order.
Shape index_of(const Shape& shape, int64_t flat) {
  Shape index = shape;
  for (int dim = shape.rank() - 1; dim >= 0; --dim) {
    index[dim] = flat % shape[dim];
    flat /= shape[dim];
  }
  return index;
}

class FiniteCheck : public NodeObserver {
 public:
  void after(const Program& program, const Step& step, const NodeOutputs& outputs) override {
    if (found) return;
    const Node& node = program.graph().nodes()[static_cast<size_t>(step.node)];
    for (size_t o = 0; o < outputs.size() && !found; ++o) {
      const TensorType& type = program.graph().type(node.outputs[o]);
      if (is_floating(type.dtype)) check(node, o, type, outputs.host(o));
    }
  }
  std::optional<NonFinite> found;

 private:
  void check(const Node& node, size_t output, const TensorType& type, const void* data) {
    // A first scan in memory order is fast, and most values are finite.
    const auto* bytes = static_cast<const std::byte*>(data);
    const int64_t size = dtype_size(type.dtype), memory_elements = type.bytes() / size;
    bool finite = true;
    for (int64_t i = 0; i < memory_elements && finite; ++i) finite = std::isfinite(load_element(type.dtype, bytes + i * size));
    if (finite) return;
    NonFinite bad;
    bad.path = node.path;
    bad.op = node.op->name;
    bad.tensor = output < node.op->outputs.size() ? std::string(node.op->outputs[output].name) : cat("output ", output);
    bad.elements = type.elements();
    for (int64_t i = 0; i < bad.elements; ++i) {
      const Shape index = index_of(type.shape, i);
      const double value = load_element(type.dtype, bytes + type.format.offset(type.shape, index) * size);
      if (std::isfinite(value)) continue;
      if (bad.nan_count + bad.inf_count == 0) bad.first_at = index;
      ++(std::isnan(value) ? bad.nan_count : bad.inf_count);
    }
    found = std::move(bad);
  }
};

/// Checks fed inputs and stored arrays before any node, so that the message names the origin of the value.
std::optional<NonFinite> check_array(const std::string& name, std::string_view kind, const Tensor& tensor) {
  if (!is_floating(tensor.dtype())) return std::nullopt;
  NonFinite bad{.path = name, .op = std::string(kind), .tensor = name, .elements = tensor.elements()};
  int64_t i = 0;
  for (double value : tensor.to_doubles()) {
    if (!std::isfinite(value)) {
      if (bad.nan_count + bad.inf_count == 0) bad.first_at = index_of(tensor.shape(), i);
      ++(std::isnan(value) ? bad.nan_count : bad.inf_count);
    }
    ++i;
  }
  return bad.nan_count + bad.inf_count > 0 ? std::optional<NonFinite>(std::move(bad)) : std::nullopt;
}

}  // namespace

std::string NonFinite::text() const {
  const std::string subject = path == tensor ? cat(op, " ", tensor) : cat(path.empty() ? "" : path + ": ", "output ", tensor, " of ", op);
  return cat(subject, " has ", nan_count, " NaN and ", inf_count, " infinite of ", elements, " values (first at ", first_at, ")");
}

std::optional<NonFinite> find_non_finite(Execution& execution) {
  if (std::optional<NonFinite> bad = execution.check_arrays(check_array)) return bad;
  FiniteCheck check;
  execution.run({.observer = &check, .skip_updates = true});
  return check.found;
}

void NodeTimer::before(const Program&, const Step&, Stream& stream) { marks_.begin(stream); }

void NodeTimer::after(const Program&, const Step& step, const NodeOutputs& outputs) {
  marks_.end(outputs.stream());
  marked_.push_back(&step);
}

void NodeTimer::after_run(const Program& program) {
  for (size_t i = 0; i < marked_.size(); ++i) {
    const auto [begin, end] = marks_.times(i);
    Row& row = row_of(program, *marked_[i]);
    ++row.calls;
    row.seconds += 1e-9 * static_cast<double>(end - begin);
  }
  marks_.clear();
  marked_.clear();
}

NodeTimer::Row& NodeTimer::row_of(const Program& program, const Step& step) {
  const auto [found, is_new] = row_of_node_.emplace(step.node, rows_.size());
  if (is_new) {
    const Node& node = program.graph().nodes()[static_cast<size_t>(step.node)];
    rows_.push_back({std::string(node.op->name), node.path, std::string(step.backend), node.phase, 0, 0.0,
                     cost_of(*node.op, context_of(program.graph(), node))});
  }
  return rows_[found->second];
}

std::vector<NodeTimer::Row> NodeTimer::by_op() const {
  std::map<std::pair<std::string, Phase>, Row> sums;
  for (const Row& row : rows_) {
    const auto [found, is_new] = sums.try_emplace({row.op, row.phase}, row);
    Row& sum = found->second;
    sum.path.clear();
    if (is_new) continue;
    if (sum.backend != row.backend && sum.backend.find(row.backend) == std::string::npos) sum.backend += "+" + row.backend;
    sum.calls += row.calls;
    sum.seconds += row.seconds;
    sum.cost.flops += row.cost.flops;
    sum.cost.saved_flops += row.cost.saved_flops;
    sum.cost.bytes_read += row.cost.bytes_read;
    sum.cost.bytes_written += row.cost.bytes_written;
  }
  std::vector<Row> rows;
  for (auto& [key, row] : sums) rows.push_back(std::move(row));
  std::stable_sort(rows.begin(), rows.end(), [](const Row& a, const Row& b) { return a.seconds > b.seconds; });
  return rows;
}

int64_t communication_ns() {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

void report_communication(NodeObserver* observer, const std::string& what, int64_t begin_ns) {
  if (observer != nullptr) observer->communicated(what, begin_ns, communication_ns());
}

}  // namespace galley
