#pragma once
// PassRunner: runs the passes of a pipeline on a graph, logs what each did, and can check the graph after each.

#include <string_view>
#include <type_traits>
#include <utility>

#include "libcore/graph/graph.h"
#include "libcore/passes/report.h"

namespace galley {

/// Logs a line for each pass, and the lines of its report, at LogLevel::kRequested, and checks the graph after each (--verbose=passes).
/// Call it once, at start.
void set_pass_log(bool on);

class PassRunner {
 public:
  /// `pipeline` is for messages. Checks the graph (verify) after each pass in debug builds, with set_pass_log, and if the environment
  /// variable GALLEY_CHECK_PASSES is set, as in the tests.
  PassRunner(std::string_view pipeline, Graph& graph) : pipeline_(pipeline), graph_(graph) {}

  /// Runs `pass(graph)` and returns its result.
  template <class Pass>
  auto run(std::string_view name, Pass&& pass) {
    begin();
    if constexpr (std::is_void_v<decltype(pass(graph_))>) {
      pass(graph_);
      end(name, {});
    } else {
      auto result = pass(graph_);
      if constexpr (std::is_same_v<decltype(result), PassReport>) {
        end(name, result);
      } else {
        end(name, {});
      }
      return result;
    }
  }

 private:
  void begin();
  /// Throws InternalError, with the name of the pass, if the graph is invalid.
  void end(std::string_view name, const PassReport& report) const;

  std::string_view pipeline_;
  Graph& graph_;
  size_t nodes_before_ = 0;
};

}  // namespace galley
