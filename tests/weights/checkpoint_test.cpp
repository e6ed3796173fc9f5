// Laws: whatever kills the process, fills the disk or damages files, the complete old or new checkpoint loads, and damage is never ignored
// silently; the policy keeps the last and the best; scalars and tensors are restored bit-exactly.
#include "libcore/weights/checkpoint.h"

#include <gtest/gtest.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cstring>
#include <filesystem>
#include <memory>
#include <mutex>
#include <random>
#include <thread>

#include "libcore/base/log.h"
#include "libcore/comm/local.h"
#include "libcore/weights/weights_file.h"
#include "tests/support/faults.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

/// Values that depend only on the step, so that a mixture of two steps is detected.
Tensor values_of(int64_t step, int64_t count) {
  Tensor tensor(DType::kF32, {count});
  for (int64_t i = 0; i < count; ++i) tensor.data_as<float>()[i] = static_cast<float>(step) + static_cast<float>(i % 97) / 128;
  return tensor;
}

CheckpointContent content_of(int64_t step, int64_t count = 4000) {
  return {.step = step,
          .groups = {{"parameters", {{"a.weight", values_of(step, count)}, {"a.bias", values_of(step + 1, 7)}}},
                     {"optimizer", {{"a.weight.momentum", values_of(step + 2, count)}}}},
          .state = "{\"lr\":0.1,\"samples\":" + std::to_string(step * 256) + "}",
          .recipe_digest = "r"};
}

void expect_content(const Checkpoint& checkpoint, int64_t count = 4000) {
  const int64_t step = checkpoint.step();
  EXPECT_TRUE(bit_equal(checkpoint.read("parameters").at("a.weight"), values_of(step, count)));
  EXPECT_TRUE(bit_equal(checkpoint.read("parameters").at("a.bias"), values_of(step + 1, 7)));
  EXPECT_TRUE(bit_equal(checkpoint.read("optimizer").at("a.weight.momentum"), values_of(step + 2, count)));
  EXPECT_EQ(checkpoint.state(), "{\"lr\":0.1,\"samples\":" + std::to_string(step * 256) + "}");
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const FolderEntry& entry : list_folder(folder)) names.push_back(entry.name);
  return names;
}

class CheckpointTest : public ::testing::Test {
 protected:
  void SetUp() override {
    set_log_sink([this](LogLevel level, const std::string& message) {
      const std::lock_guard lock(mutex_);  // ranks are threads
      if (level == LogLevel::kWarning) warnings_ += message + "\n";
    });
  }
  void TearDown() override {
    faults::set({});
    set_log_sink({});
  }

  TemporaryFolder folder_;
  std::string parent_ = folder_ / "run/checkpoints";
  std::mutex mutex_;
  std::string warnings_;
};

TEST_F(CheckpointTest, RoundTrip) {
  CheckpointStore store(parent_, {.last = 2});
  EXPECT_FALSE(store.newest().has_value());
  CheckpointContent content = content_of(500);
  content.score = 74.04;
  content.state = "{\"ema\":0.10000000000000001,\"count\":9007199254740993,\"nested\":{\"x\":[1e-300]}}";
  EXPECT_EQ(store.save(content), parent_ + "/step-000500");
  const auto found = store.newest();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->step(), 500);
  EXPECT_EQ(found->score(), 74.04);
  EXPECT_EQ(found->recipe_digest(), "r");
  EXPECT_EQ(found->state(), "{\"count\":9007199254740993,\"ema\":0.1,\"nested\":{\"x\":[1e-300]}}");
  EXPECT_EQ(found->groups(), (std::vector<std::string>{"parameters", "optimizer"}));
  EXPECT_THROW(found->read("ema"), Error);
  EXPECT_EQ(names_in(parent_), std::vector<std::string>{"step-000500"});
  EXPECT_EQ(warnings_, "");
}

TEST_F(CheckpointTest, KeepsTheLastAndTheBest) {
  CheckpointStore store(parent_, {.last = 2, .best = 1});
  const double scores[] = {1, 5, 3, 5, 2};
  for (int64_t i = 0; i < 5; ++i) {
    CheckpointContent content = content_of(100 * (i + 1), 10);
    content.score = scores[i];
    store.save(content);
  }
  EXPECT_EQ(names_in(parent_), (std::vector<std::string>{"step-000200", "step-000400", "step-000500"})) << "of equal scores the earlier";
  store.save(content_of(1234567, 10));
  EXPECT_EQ(names_in(parent_), (std::vector<std::string>{"step-000200", "step-000500", "step-1234567"}));
  EXPECT_EQ(store.newest()->step(), 1234567) << "by number, not by name";
}

TEST_F(CheckpointTest, SavingAStepTwice) {
  CheckpointStore store(parent_, {.last = 1});
  store.save(content_of(7));
  store.save(content_of(7));
  expect_content(*store.newest());
  EXPECT_EQ(names_in(parent_), std::vector<std::string>{"step-000007"});
  write_file(parent_ + "/step-000007/manifest.json", "{}");
  store.save(content_of(7));
  expect_content(*store.newest());
  EXPECT_EQ(names_in(parent_), std::vector<std::string>{"step-000007"});
}

TEST_F(CheckpointTest, FallsBackLoudly) {
  CheckpointStore store(parent_, {.last = 3});
  for (const int64_t step : {100, 200, 300}) store.save(content_of(step));
  const std::string newest = parent_ + "/step-000300/optimizer.safetensors";
  std::string bytes = read_file(newest);
  bytes[bytes.size() - 5] ^= 1;
  write_file(newest, bytes);
  write_file(parent_ + "/step-000200/manifest.json", "");
  const auto found = store.newest();
  ASSERT_TRUE(found.has_value());
  EXPECT_EQ(found->step(), 100);
  expect_content(*found);
  EXPECT_NE(warnings_.find("'a.weight.momentum'"), std::string::npos) << warnings_;
  EXPECT_NE(warnings_.find("step-000200"), std::string::npos) << warnings_;
  remove_tree(parent_ + "/step-000100/parameters.safetensors");
  try {
    store.newest();
    FAIL() << "all are damaged";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    EXPECT_NE(error.text().find("every checkpoint"), std::string::npos);
  }
  // The run went back to step 100 and reaches 150: later checkpoints belong to the abandoned run.
  store.save(content_of(150));
  EXPECT_EQ(store.newest()->step(), 150);
}

TEST_F(CheckpointTest, AFileOfAnotherCheckpointDoesNotPass) {
  CheckpointStore store(parent_, {.last = 2});
  store.save(content_of(100));
  store.save(content_of(200));
  write_file(parent_ + "/step-000200/parameters.safetensors", read_file(parent_ + "/step-000100/parameters.safetensors"));
  EXPECT_EQ(store.newest()->step(), 100);
  EXPECT_NE(warnings_.find("'a.weight' differs from the manifest"), std::string::npos) << warnings_;
}

TEST_F(CheckpointTest, EveryTruncationAndFlippedBitIsFound) {
  CheckpointStore store(parent_, {.last = 2});
  const std::string saved = store.save(content_of(100, 50));
  std::mt19937_64 random(11);
  int found = 0, tried = 0;
  const auto damaged = [&](const std::string& path, const std::string& bytes) {
    FILE* out = fopen(path.c_str(), "wb");
    fwrite(bytes.data(), 1, bytes.size(), out);
    fclose(out);
    ++tried;
    try {
      Checkpoint(saved).verify();
      ADD_FAILURE() << "damage of " << path << " is not detected";
    } catch (const Error& error) {
      const bool named = error.text().find(path) != std::string::npos;
      EXPECT_TRUE(named) << error.text();
      found += named && error.code() == ErrorCode::kInput;
    }
  };
  for (const char* name : {"/manifest.json", "/parameters.safetensors", "/optimizer.safetensors"}) {
    const std::string path = saved + name, good = read_file(path);
    for (size_t percent = 0; percent < 100; ++percent) damaged(path, good.substr(0, good.size() * percent / 100));
    for (int i = 0; i < 700; ++i) {
      std::string bad = good;
      const size_t bit = random() % (bad.size() * 8);
      bad[bit / 8] = static_cast<char>(bad[bit / 8] ^ (1 << bit % 8));
      damaged(path, bad);
    }
    write_file(path, good);
  }
  EXPECT_EQ(found, tried);
  EXPECT_EQ(tried, 2400);
  EXPECT_NO_THROW(Checkpoint(saved).verify());
}

TEST_F(CheckpointTest, EveryFailingCallLeavesTheOldOne) {
  CheckpointStore store(parent_, {.last = 1});
  faults::set({});
  store.save(content_of(1));
  // Calls up to the rename that publishes the checkpoint; afterwards the save has succeeded, and only removing the old one can fail.
  faults::set({});
  store.save(content_of(2));
  const int64_t calls = faults::calls();
  ASSERT_GT(calls, 12);
  for (const int error : {ENOSPC, EIO}) {
    for (int64_t at = 0; at < calls; ++at) {
      remove_tree(parent_);
      store.save(content_of(1));
      faults::set({.at = at, .error = error});
      bool failed = false;
      try {
        store.save(content_of(2));
      } catch (const Error& problem) {
        failed = true;
        EXPECT_EQ(problem.code(), ErrorCode::kResource) << problem.text();
      }
      faults::set({});
      const auto found = store.newest();
      ASSERT_TRUE(found.has_value()) << at;
      expect_content(*found);
      EXPECT_TRUE(failed || found->step() == 2) << "call " << at << " failed, the save said it did not";
      store.remove_stale();
      store.save(content_of(3));
      EXPECT_EQ(names_in(parent_), std::vector<std::string>{"step-000003"}) << at;
    }
  }
}

/// A child saves steps 1, 2, ... until it is killed.
pid_t start_saving(const std::string& parent, int64_t first, int64_t kill_at) {
  const pid_t child = ::fork();
  if (child != 0) return child;
  try {
    CheckpointStore store(parent, {.last = 1});
    store.remove_stale();
    if (kill_at >= 0) faults::set({.at = kill_at, .kill = true});
    for (int64_t step = first;; ++step) {
      store.save(content_of(step));
      if (kill_at >= 0) ::_exit(0);
    }
  } catch (const std::exception&) {
    ::_exit(1);
  }
}

TEST_F(CheckpointTest, KilledAtEveryCall) {
  int64_t at = 0;
  for (bool killed = true; killed; ++at) {
    remove_tree(parent_);
    CheckpointStore store(parent_, {.last = 1});
    store.save(content_of(1));
    int status = 0;
    ASSERT_GT(::waitpid(start_saving(parent_, 2, at), &status, 0), 0);
    killed = WIFSIGNALED(status);
    ASSERT_TRUE(killed || WEXITSTATUS(status) == 0);
    const auto found = store.newest();
    ASSERT_TRUE(found.has_value()) << "killed at call " << at;
    expect_content(*found);
    EXPECT_EQ(warnings_, "") << "a kill causes no damage, so there is no fallback";
  }
  EXPECT_GT(at, 12);
}

TEST_F(CheckpointTest, KilledAtEveryCallOfASecondSaveOfTheStep) {
  for (int64_t at = 0;; ++at) {
    remove_tree(parent_);
    CheckpointStore store(parent_, {.last = 1});
    store.save(content_of(2));
    int status = 0;
    ASSERT_GT(::waitpid(start_saving(parent_, 2, at), &status, 0), 0);
    const auto found = store.newest();
    ASSERT_TRUE(found.has_value()) << "killed at call " << at;
    expect_content(*found);
    if (!WIFSIGNALED(status)) break;
  }
}

TEST_F(CheckpointTest, KilledAtRandomMoments) {
  std::mt19937_64 random(3);
  CheckpointStore store(parent_, {.last = 1});
  store.save(content_of(1));
  // A slow machine gets more time until a child has finished.
  uint64_t longest_us = 40'000;
  for (int trial = 0; trial < 20 || (store.newest()->step() == 1 && trial < 30); ++trial) {
    const int64_t before = store.newest()->step();
    if (trial % 5 == 4 && before == 1) longest_us *= 4;
    const pid_t child = start_saving(parent_, before + 1, -1);
    ::usleep(static_cast<useconds_t>(random() % longest_us));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    const auto found = store.newest();
    ASSERT_TRUE(found.has_value());
    EXPECT_GE(found->step(), before);
    expect_content(*found);
  }
  EXPECT_GT(store.newest()->step(), 1) << "no child finished a save, so nothing was tested";
  EXPECT_EQ(warnings_, "");
}

TEST_F(CheckpointTest, FullDiskLeavesTheOldOne) {
  // A file system of 256 KiB if this user may mount one; otherwise the limit on file sizes, which fails the same write.
  const std::string small = folder_ / "small";
  make_folders(small);
  const bool mounted = ::mount("tmpfs", small.c_str(), "tmpfs", 0, "size=256k") == 0;
  const std::string parent = small + "/checkpoints";
  const pid_t child = ::fork();
  if (child == 0) {
    CheckpointStore store(parent, {.last = 1});
    try {
      store.save(content_of(1));
      ::signal(SIGXFSZ, SIG_IGN);
      const rlimit limit{64 * 1024, 64 * 1024};
      if (!mounted) ::setrlimit(RLIMIT_FSIZE, &limit);
      store.save(content_of(2, 100000));
    } catch (const Error& error) {
      ::_exit(error.code() == ErrorCode::kResource && store.newest()->step() == 1 && names_in(parent).size() == 1 ? 42 : 1);
    }
    ::_exit(2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  if (mounted) ::umount(small.c_str());
  EXPECT_EQ(WEXITSTATUS(status), 42) << (mounted ? "tmpfs" : "RLIMIT_FSIZE");
}

TEST_F(CheckpointTest, ReadOnlyFolder) {
  make_folders(folder_ / "run");
  // Root may write anywhere, so the system's answer is injected; for other users the folder's mode is sufficient.
  ::chmod((folder_ / "run").c_str(), 0555);
  if (::geteuid() == 0) faults::set({.at = 0, .error = EROFS, .only = "mkdir"});
  CheckpointStore store(parent_, {});
  try {
    store.save(content_of(1));
    ADD_FAILURE() << "saved into a read-only folder";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResource);
    EXPECT_NE(error.text().find("-o"), std::string::npos) << error.text();
  }
  ::chmod((folder_ / "run").c_str(), 0755);
}

TEST_F(CheckpointTest, StaleTemporariesAreIgnoredAndRemoved) {
  CheckpointStore store(parent_, {.last = 1});
  store.remove_stale();
  store.save(content_of(5));
  make_folders(parent_ + "/step-000009.tmp-0123456789abcdef");
  make_folders(parent_ + "/notes");
  EXPECT_EQ(store.newest()->step(), 5);
  store.remove_stale();
  EXPECT_EQ(names_in(parent_), (std::vector<std::string>{"notes", "step-000005"}));
}

// Checkpoints of ranks. Each holds the range [T r / N, T (r+1) / N) of each tensor, as threads of this process.

CheckpointContent part_of(int64_t step, int rank, int ranks, int64_t count = 4000) {
  CheckpointContent content = content_of(step, count);
  for (const CheckpointGroup& group : content.groups) {
    for (const TensorSource& tensor : group.tensors) {
      const int64_t elements = tensor.shape.elements();
      CheckpointPiece piece{group.name, tensor.name, tensor.dtype, tensor.shape, elements * rank / ranks, elements * (rank + 1) / ranks,
                            {}};
      if (piece.begin == piece.end) continue;
      piece.values = [whole = tensor.values(), piece] {
        Tensor range(piece.dtype, {piece.end - piece.begin});
        std::memcpy(range.data(), whole.data_as<float>() + piece.begin, static_cast<size_t>(range.bytes()));
        return range;
      };
      content.pieces.push_back(std::move(piece));
    }
  }
  content.groups.clear();
  return content;
}

/// Saves with that many ranks; the messages of the errors, by rank.
std::vector<std::string> save_with(const std::string& parent, int ranks, int64_t step, int64_t count = 4000) {
  auto communicators = local_communicators(ranks, {.timeout_s = 60});
  std::vector<std::string> errors(static_cast<size_t>(ranks));
  std::vector<std::thread> threads;
  for (int r = 0; r < ranks; ++r) {
    threads.emplace_back([&, r] {
      try {
        CheckpointStore(parent, {.last = 1}).save(part_of(step, r, ranks, count), *communicators[static_cast<size_t>(r)]);
      } catch (const Error& error) {
        errors[static_cast<size_t>(r)] = cat(static_cast<int>(error.code()), " ", error.message());
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  return errors;
}

TEST_F(CheckpointTest, RanksWriteAPartEachAndAnyNumberOfThemReadsRanges) {
  for (int ranks = 2; ranks <= 4; ++ranks) {
    for (const std::string& error : save_with(parent_, ranks, ranks)) EXPECT_EQ(error, "");
    const auto found = CheckpointStore(parent_, {}).newest();
    ASSERT_TRUE(found.has_value());
    EXPECT_EQ(found->step(), ranks);
    EXPECT_TRUE(found->in_parts());
    expect_content(*found);
    EXPECT_EQ(names_in(found->folder()).size(), static_cast<size_t>(ranks) + 1);  // parts and the manifest
    const ManifestTensor& weight = found->tensors("parameters").front();
    const Tensor whole = values_of(ranks, 4000);
    for (int readers = 1; readers <= 5; ++readers) {
      for (int64_t r = 0; r < readers; ++r) {
        const int64_t begin = 4000 * r / readers, end = 4000 * (r + 1) / readers;
        std::vector<float> range(static_cast<size_t>(end - begin));
        found->read_range(weight, begin, std::as_writable_bytes(std::span(range)));
        EXPECT_EQ(std::memcmp(range.data(), whole.data_as<float>() + begin, range.size() * sizeof(float)), 0);
      }
    }
  }
  EXPECT_EQ(names_in(parent_), std::vector<std::string>{"step-000004"});
  EXPECT_EQ(warnings_, "");
}

TEST_F(CheckpointTest, ACheckpointInPartsIsAFileOfWeights) {
  save_with(parent_, 3, 1);
  const std::string folder = parent_ + "/step-000001";
  const WeightsFile weights(folder + "/manifest.json");
  EXPECT_EQ(weights.format(), "checkpoint");
  ASSERT_EQ(weights.tensors().size(), 2u);
  ASSERT_EQ(weights.others().size(), 1u);
  for (size_t i = 0; i < 2; ++i) {
    const bool weight = weights.tensors()[i].name == "a.weight";
    EXPECT_TRUE(bit_equal(weights.read(i), weight ? values_of(1, 4000) : values_of(2, 7)));
  }
  EXPECT_TRUE(weights.verify().complete());
  try {
    const WeightsFile part(folder + "/part-0001.safetensors");
    FAIL() << "a part passes as weights";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kInput);
    EXPECT_NE(error.text().find("galley-weights convert " + folder + " -o weights.safetensors"), std::string::npos) << error.text();
  }
}

TEST_F(CheckpointTest, DamageOfAPartIsOneError) {
  const auto message = [&] {
    try {
      Checkpoint(parent_ + "/step-000002").verify();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::kInput);
      return error.message();
    }
    return std::string();
  };
  save_with(parent_, 3, 1, 50);
  const std::string kept = folder_ / "kept", part = parent_ + "/step-000002/part-0001.safetensors";
  std::filesystem::rename(parent_ + "/step-000001", kept);
  save_with(parent_, 3, 2, 50);
  EXPECT_EQ(message(), "");
  const std::string good = read_file(part);
  remove_tree(part);
  EXPECT_EQ(message(), part + " is missing: 3 ranks wrote this checkpoint, a part each");
  write_file(part, good.substr(0, good.size() / 2));
  EXPECT_NE(message().find(part + " has "), std::string::npos) << message();
  for (size_t at = 0; at < good.size(); at += 13) {
    std::string bad = good;
    bad[at] = static_cast<char>(bad[at] ^ 4);
    write_file(part, bad);
    EXPECT_NE(message().find(part), std::string::npos) << at << ": " << message();
  }
  write_file(part, read_file(kept + "/part-0001.safetensors"));  // of the same size, and consistent in itself
  EXPECT_NE(message().find(part + ": tensor 'a."), std::string::npos) << message();
  write_file(part, good);
  EXPECT_EQ(message(), "");
}

TEST_F(CheckpointTest, RanksAgreeOnTheNewestCheckpointThatVerifies) {
  save_with(parent_, 3, 1);
  const std::string first = folder_ / "first";
  std::filesystem::rename(parent_ + "/step-000001", first);
  save_with(parent_, 3, 2);
  std::filesystem::rename(first, parent_ + "/step-000001");
  const std::string part = parent_ + "/step-000002/part-0002.safetensors";
  std::string bytes = read_file(part);
  bytes[bytes.size() - 5] ^= 1;
  write_file(part, bytes);
  auto communicators = local_communicators(2, {.timeout_s = 60});
  std::vector<int64_t> steps(2);
  std::vector<std::thread> threads;
  for (size_t r = 0; r < 2; ++r)
    threads.emplace_back([&, r] { steps[r] = CheckpointStore(parent_, {}).newest(communicators[r].get())->step(); });
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(steps, (std::vector<int64_t>{1, 1}));  // rank 1 alone has no damage in its share of the files
  EXPECT_NE(warnings_.find("step-000002 is damaged"), std::string::npos) << warnings_;
}

TEST_F(CheckpointTest, EveryFailingCallOfARankLeavesTheOldOneAndIsTheErrorOfAll) {
  save_with(parent_, 2, 1);
  faults::set({});
  save_with(parent_, 2, 2);
  const int64_t calls = faults::calls();
  ASSERT_GT(calls, 12);
  for (int64_t at = 0; at < calls; ++at) {
    remove_tree(parent_);
    save_with(parent_, 2, 1);
    faults::set({.at = at, .error = ENOSPC});
    const std::vector<std::string> errors = save_with(parent_, 2, 2);
    faults::set({});
    EXPECT_EQ(errors[0], errors[1]) << at;
    if (!errors[0].empty()) {
      EXPECT_TRUE(errors[0].starts_with("7 rank 0: ") || errors[0].starts_with("7 rank 1: ")) << errors[0];
    }
    CheckpointStore store(parent_, {.last = 1});
    const auto found = store.newest();
    ASSERT_TRUE(found.has_value()) << at;
    expect_content(*found);
    EXPECT_TRUE(!errors[0].empty() || found->step() == 2) << "call " << at << " failed, the save said it did not";
    store.remove_stale();
  }
}

TEST_F(CheckpointTest, RanksKilledAtRandomMoments) {
  std::mt19937_64 random(5);
  save_with(parent_, 3, 1);
  const CheckpointStore store(parent_, {.last = 1});
  uint64_t longest_us = 40'000;  // a slow machine gets more time until a child has finished
  for (int trial = 0; trial < 20 || (store.newest()->step() == 1 && trial < 30); ++trial) {
    const int64_t before = store.newest()->step();
    if (trial % 5 == 4 && before == 1) longest_us *= 4;
    const pid_t child = ::fork();
    if (child == 0) {
      CheckpointStore(parent_, {}).remove_stale();
      for (int64_t step = before + 1;; ++step) save_with(parent_, 3, step);
    }
    ::usleep(static_cast<useconds_t>(random() % longest_us));
    ::kill(child, SIGKILL);
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status));
    const auto found = store.newest();
    ASSERT_TRUE(found.has_value());
    EXPECT_GE(found->step(), before);
    expect_content(*found);
  }
  EXPECT_GT(store.newest()->step(), 1) << "no child finished a save, so nothing was tested";
  EXPECT_EQ(warnings_, "");
}

}  // namespace
}  // namespace galley
