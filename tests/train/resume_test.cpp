// Laws: a run continues with the same keys and a duration that is not shorter; keys that do not affect its results may differ, and only
// those.

#include "libcore/train/resume.h"

#include <gtest/gtest.h>

#include "tests/train/models.h"
#include "tests/train/stepping.h"

namespace galley {
namespace {

const std::string kOverrides[] = {
    "data.val={source: {type: synthetic, samples: 8, shape: [12], classes: 3}, batch: 4}",
    "data.test={source: {type: synthetic, samples: 8, shape: [12], classes: 3}}",
};

LoadedRecipe load(std::vector<std::string> more = {}) {
  more.insert(more.begin(), std::begin(kOverrides), std::end(kOverrides));
  return test::load_text(test::kPerceptron, std::move(more));
}
ResumeCheck checked(const LoadedRecipe& before, const LoadedRecipe& now) { return check_resume(before.recipe, now.recipe, "run"); }
/// The key of the error; "": none.
std::string refused(const LoadedRecipe& before, const LoadedRecipe& now) {
  try {
    checked(before, now);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kRecipe);
    return error.key();
  }
  return "";
}

TEST(CheckResume, TheDurationMayGrow) {
  const LoadedRecipe before = load();
  EXPECT_TRUE(checked(before, load()).same);
  EXPECT_FALSE(checked(before, load()).longer);
  const ResumeCheck longer = checked(before, load({"train.duration=11 steps"}));
  EXPECT_TRUE(longer.longer);
  EXPECT_FALSE(longer.same);
  EXPECT_EQ(refused(before, load({"train.duration=9 steps"})), "train.duration");
  EXPECT_EQ(refused(before, load({"train.duration=20 epochs"})), "train.duration") << "another unit";
}

TEST(CheckResume, KeysThatDoNotAffectResultsMayDiffer) {
  const LoadedRecipe before = load();
  for (const std::string change :
       {"threads=1", "name=other", "log.every=3 steps", "checkpoint={every: 3 steps}", "data.train.workers=3", "data.val.workers=3",
        "data.val.prefetch=7", "data.train.on_error=skip", "data.val.on_error=skip", "data.test.batch=2", "data.calibration.samples=3",
        "evaluate.data=test", "predict.top=2", "quantize.method=static", "quantize.saturation=reduce", "benchmark.what=forward"}) {
    EXPECT_EQ(refused(before, load({change})), "") << change;
  }
}

TEST(CheckResume, NamesTheKeyThatDiffers) {
  const LoadedRecipe before = load();
  const std::pair<std::string, std::string> changes[] = {{"train.optimizer.lr=0.5", "train.optimizer.lr"},
                                                         {"train.batch=8", "train.batch"},
                                                         {"seed=9", "seed"},
                                                         {"data.val.batch=2", "data.val.batch"}};
  for (const auto& [change, key] : changes) EXPECT_EQ(refused(before, load({change})).substr(0, key.size()), key) << change;
  const LoadedRecipe aware = load({"quantize.method=qat"});
  EXPECT_EQ(refused(before, aware), "quantize.method") << "training reads it";
  EXPECT_EQ(refused(aware, before), "quantize.method");
  EXPECT_EQ(refused(aware, load({"quantize.method=qat", "quantize.qat.learn_scale=true"})), "quantize.qat.learn_scale");
}

}  // namespace
}  // namespace galley
