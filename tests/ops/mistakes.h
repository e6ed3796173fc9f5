#pragma once
// Shared by tests of errors: inputs of a graph, and the error that a capture must throw.

#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "libcore/graph/graph.h"

namespace galley {

class MistakeTest : public testing::Test {
 protected:
  Value input(const Shape& shape, DType dtype = DType::kF32, MemoryFormat format = {}, std::vector<std::string> names = {}) {
    return graph_.add_input(cat("in", graph_.inputs().size()), {dtype, shape, format, std::move(names)}, ValueRole::kInput);
  }
  /// Runs `capture`, which must throw an Error of exit code 3 whose message contains all `parts`.
  template <class Capture>
  void expect_error(Capture capture, const std::vector<std::string>& parts) {
    try {
      capture();
      ADD_FAILURE() << "no error; wanted one with " << parts.front();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kRecipe);
      for (const std::string& part : parts)
        EXPECT_NE(error.message().find(part), std::string::npos) << error.message() << " lacks " << part;
    }
  }
  Graph graph_;
};

}  // namespace galley
