// Selectors, against hand-written lists.

#include "libcore/recipe/selector.h"

#include <gtest/gtest.h>

#include "tests/recipe/kinds.h"

namespace galley::recipe_test {
namespace {

const std::vector<Selectable> kItems{{"conv1.weight", "conv2d", 4},
                                     {"bn1.weight", "batch_norm", 1},
                                     {"bn1.bias", "batch_norm", 1},
                                     {"layer1.0.conv1.weight", "conv2d", 4},
                                     {"layer10.conv.weight", "conv2d", 4},
                                     {"fc.weight", "linear", 2},
                                     {"fc.bias", "linear", 1}};

std::vector<int64_t> select(std::vector<std::string> match, std::vector<std::string> except = {}) {
  return Selector{std::move(match), std::move(except)}.select(kItems, "train.freeze.0");
}

TEST(Selector, EveryForm) {
  EXPECT_EQ(select({"*"}).size(), kItems.size());
  EXPECT_EQ(select({"fc"}), (std::vector<int64_t>{5, 6}));
  EXPECT_EQ(select({"layer1"}), (std::vector<int64_t>{3}));
  EXPECT_EQ(select({"*.bias"}), (std::vector<int64_t>{2, 6}));
  EXPECT_EQ(select({"layer*weight"}), (std::vector<int64_t>{3, 4}));
  EXPECT_EQ(select({"type:conv2d"}), (std::vector<int64_t>{0, 3, 4}));
  EXPECT_EQ(select({"type:norm", "*.bias"}), (std::vector<int64_t>{1, 2, 6}));
  EXPECT_EQ(select({"ndim:1"}), (std::vector<int64_t>{1, 2, 6}));
  EXPECT_EQ(select({"re:^layer\\d+\\.0"}), (std::vector<int64_t>{3}));
  EXPECT_EQ(select({"*"}, {"fc", "type:norm"}), (std::vector<int64_t>{0, 3, 4}));
  EXPECT_EQ(select({}), std::vector<int64_t>{});
  const std::string stars(40, '*');
  EXPECT_FALSE(pattern_matches("*a*a*a*a*a*a*a*a*a*a*b", {std::string(5000, 'a'), "", 0}));
}

TEST(Selector, APatternThatMatchesNothingIsAnError) {
  const Error error = error_of([] { select({"fc", "layer2"}); });
  EXPECT_EQ(error.message(), "'train.freeze.0.match': the pattern 'layer2' matches none of the 7 names");
  EXPECT_EQ(error.suggestion(), "did you mean 'layer1'?");
  EXPECT_EQ(error_of([] { select({"*"}, {"type:batchnorm"}); }).suggestion(), "did you mean 'type:batch_norm'?");
  EXPECT_EQ(error_of([] { select({"*.wieght"}); }).suggestion(), "did you mean '*.weight'?");
  EXPECT_EQ(error_of([] { select({"re:("}); }).code(), ErrorCode::kRecipe);
}

}  // namespace
}  // namespace galley::recipe_test
