#pragma once
// The reference of one node, made ready: a primitive by its function (ref.h), a composite by its definition, captured once and computed in
// double throughout. Only the node's own outputs are rounded, by the caller.

#include <memory>
#include <vector>

#include "libcore/backends/ref/ref.h"

namespace galley {

class Reference {
 public:
  /// Throws InternalError where the operator has neither a function nor a definition for this form.
  Reference(const OpDef& op, std::shared_ptr<const Options> attributes, const OpContext& types);
  Reference(Reference&&) noexcept;
  Reference& operator=(Reference&&) noexcept;
  ~Reference();

  /// Computes the outputs of the call, which come zeroed. Where the operator's gate is closed, the state that it would update stays as it
  /// is.
  void run(RefCall& call) const;

 private:
  struct Body;
  const OpDef* op_;
  RefFunction function_ = nullptr;
  std::unique_ptr<const Body> body_;  // of a composite
};

/// A graph whose references are made ready once, for runs with several feeds. The graph must outlive it.
class Interpreter {
 public:
  explicit Interpreter(const Graph& graph);
  /// As interpret (ref.h).
  std::map<ValueId, RefArray> run(const std::map<std::string, RefArray>& feeds, bool round = false) const;

 private:
  const Graph& graph_;
  std::vector<Reference> nodes_;
};

}  // namespace galley
