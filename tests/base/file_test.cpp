// Laws: a file has its old or its new contents, whatever system call fails or kills the process; failures are Errors with the right exit
// code, the path and a suggested fix; interrupted and short writes lose nothing; no temporary file is left.
#include "libcore/base/file.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <optional>

#include "libcore/base/error.h"
#include "tests/support/faults.h"
#include "tests/support/temporary_folder.h"

namespace galley {
namespace {

/// Runs `action`, which must throw an Error with that code whose text contains `part`.
template <class Action>
void expect_error(ErrorCode code, const std::string& part, Action action) {
  try {
    action();
    FAIL() << "no error; expected one with '" << part << "'";
  } catch (const Error& error) {
    EXPECT_EQ(static_cast<int>(error.code()), static_cast<int>(code)) << error.text();
    EXPECT_NE(error.text().find(part), std::string::npos) << error.text();
  }
}

std::vector<std::string> names_in(const std::string& folder) {
  std::vector<std::string> names;
  for (const FolderEntry& entry : list_folder(folder)) names.push_back(entry.name);
  return names;
}

TEST(File, WriteThenReadAndMap) {
  const TemporaryFolder folder;
  std::string contents(300000, '\0');
  for (size_t i = 0; i < contents.size(); ++i) contents[i] = static_cast<char>(i * 31 % 251);
  write_file(folder / "a.bin", contents);
  EXPECT_EQ(read_file(folder / "a.bin"), contents);
  const auto mapped = MappedFile::open(folder / "a.bin");
  ASSERT_EQ(mapped->bytes().size(), contents.size());
  EXPECT_EQ(std::memcmp(mapped->bytes().data(), contents.data(), contents.size()), 0);
  write_file(folder / "a.bin", "new");
  EXPECT_EQ(std::memcmp(mapped->bytes().data(), contents.data(), contents.size()), 0) << "a mapping keeps the old contents";
  EXPECT_EQ(read_file(folder / "a.bin"), "new");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"a.bin"});
  write_file(folder / "empty", "");
  EXPECT_EQ(MappedFile::open(folder / "empty")->bytes().size(), 0u);
  EXPECT_EQ(read_file(folder / "empty"), "");
}

TEST(File, ReadErrorsAreInputErrors) {
  const TemporaryFolder folder;
  write_file(folder / "weights.safetensors", "0123456789");
  expect_error(ErrorCode::kInput, "did you mean '" + folder / "weights.safetensors" + "'",
               [&] { read_file(folder / "weigths.safetensors"); });
  expect_error(ErrorCode::kInput, "Is a directory", [&] { read_file(folder.path()); });
  expect_error(ErrorCode::kInput, "larger than the limit of 9 bytes", [&] { read_file(folder / "weights.safetensors", 9); });
  EXPECT_EQ(read_file(folder / "weights.safetensors", 10).size(), 10u);
  expect_error(ErrorCode::kInput, "No such file", [&] { MappedFile::open(folder / "x/y"); });
  expect_error(ErrorCode::kInput, "cannot list", [&] { list_folder(folder / "absent"); });
  std::byte buffer[4];
  expect_error(ErrorCode::kInput, "ends at byte 10", [&] { InputFile(folder / "weights.safetensors").read(8, buffer); });
  expect_error(ErrorCode::kInput, "not a regular file", [] { MappedFile::open("/dev/null"); });
}

TEST(File, WriteErrorsAreResourceErrors) {
  const TemporaryFolder folder;
  make_folders(folder / "a/b");
  expect_error(ErrorCode::kResource, "create the folder first", [&] { write_file(folder / "absent/x", "1"); });
  expect_error(ErrorCode::kResource, "Is a directory", [&] { write_file(folder / "a", "1"); });
  write_file(folder / "file", "1");
  expect_error(ErrorCode::kResource, "Not a directory", [&] { make_folders(folder / "file/x"); });
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"a", "file"}));
}

TEST(File, WritesWhatALinkNamesAndNoPipe) {
  const TemporaryFolder folder;
  make_folders(folder / "a");
  write_file(folder / "a/file", "old");
  ASSERT_EQ(symlink("a/file", (folder / "link").c_str()), 0);
  ASSERT_EQ(symlink((folder / "link").c_str(), (folder / "second").c_str()), 0);
  write_file(folder / "second", "new");
  EXPECT_EQ(read_file(folder / "a/file"), "new");
  ASSERT_EQ(symlink("a/later", (folder / "dangling").c_str()), 0);
  write_file(folder / "dangling", "made");
  EXPECT_EQ(read_file(folder / "a/later"), "made");
  EXPECT_EQ(names_in(folder.path()), (std::vector<std::string>{"a", "dangling", "link", "second"}));
  EXPECT_TRUE(std::filesystem::is_symlink(folder / "link") && std::filesystem::is_symlink(folder / "second"));

  ASSERT_EQ(mkfifo((folder / "pipe").c_str(), 0600), 0);
  ASSERT_EQ(symlink("pipe", (folder / "to_pipe").c_str()), 0);
  ASSERT_EQ(symlink("loop", (folder / "loop").c_str()), 0);
  for (const char* name : {"pipe", "to_pipe"})
    expect_error(ErrorCode::kResource, "it is a pipe, not a regular file", [&] { write_file(folder / name, "1"); });
  expect_error(ErrorCode::kResource, "loop", [&] { write_file(folder / "loop", "1"); });
  EXPECT_TRUE(std::filesystem::is_fifo(folder / "pipe"));
}

TEST(File, UnfinishedWriteLeavesNothing) {
  const TemporaryFolder folder;
  write_file(folder / "x", "old");
  {
    OutputFile file(folder / "x");
    file.write("new");
    EXPECT_EQ(read_file(folder / "x"), "old");
    EXPECT_EQ(names_in(folder.path()).size(), 2u);
  }
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"x"});
  EXPECT_EQ(read_file(folder / "x"), "old");
}

TEST(File, InterruptedAndShortWritesLoseNothing) {
  const TemporaryFolder folder;
  const std::string contents(1000, 'x');
  faults::set({.short_writes = 7, .interruptions = 5});
  OutputFile file(folder / "x");
  file.write(contents);
  file.rewrite(990, "0123456789");
  file.finish();
  faults::set({});
  EXPECT_EQ(read_file(folder / "x"), contents.substr(0, 990) + "0123456789");
}

TEST(File, EveryFailingCallLeavesTheOldContents) {
  const TemporaryFolder folder;
  const std::string path = folder / "x";
  write_file(path, "old");
  faults::set({});
  write_file(path, "old");
  const int64_t calls = faults::calls();
  ASSERT_GE(calls, 5);  // open, write, fsync, rename, fsync of the folder
  for (const int error : {ENOSPC, EIO, EDQUOT, EROFS}) {
    for (int64_t at = 0; at < calls; ++at) {
      faults::set({.at = at, .error = error});
      expect_error(ErrorCode::kResource, folder.path(), [&] { write_file(path, "new"); });
      faults::set({});
      // Only the last call, the fsync of the folder, comes after the new contents are in place.
      EXPECT_EQ(read_file(path), at < calls - 1 ? "old" : "new") << at;
      EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"x"}) << at;
      write_file(path, "old");
    }
  }
}

TEST(File, KilledAtAnyCallLeavesOldOrNew) {
  const TemporaryFolder folder;
  const std::string path = folder / "x", old_contents(5000, 'o'), new_contents(7000, 'n');
  int64_t at = 0;
  for (bool killed = true; killed; ++at) {
    write_file(path, old_contents);
    const pid_t child = ::fork();
    if (child == 0) {
      faults::set({.at = at, .kill = true});
      write_file(path, new_contents);
      ::_exit(0);
    }
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    killed = WIFSIGNALED(status);
    const std::string found = read_file(path);
    EXPECT_TRUE(found == old_contents || found == new_contents) << "killed at call " << at;
    remove_stale_temporaries(folder.path());
    EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"x"});
  }
  EXPECT_GE(at, 5);
}

TEST(File, LimitOnFileSizeIsAnError) {
  const TemporaryFolder folder;
  write_file(folder / "x", "old");
  const pid_t child = ::fork();
  if (child == 0) {
    ::signal(SIGXFSZ, SIG_IGN);
    const rlimit limit{1000, 1000};
    ::setrlimit(RLIMIT_FSIZE, &limit);
    try {
      write_file(folder / "x", std::string(2000, 'n'));
    } catch (const Error& error) {
      ::_exit(error.code() == ErrorCode::kResource && error.text().find("ulimit") != std::string::npos ? 42 : 1);
    }
    ::_exit(2);
  }
  int status = 0;
  ASSERT_EQ(::waitpid(child, &status, 0), child);
  EXPECT_EQ(WEXITSTATUS(status), 42);
  EXPECT_EQ(read_file(folder / "x"), "old");
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"x"});
}

TEST(File, TemporaryNames) {
  EXPECT_TRUE(is_temporary_name(temporary_name("weights.safetensors")));
  EXPECT_TRUE(is_temporary_name(temporary_name("step-000500/")));
  EXPECT_NE(temporary_name("a"), temporary_name("a"));
  for (const char* name :
       {"a", "a.tmp", ".tmp-0123456789abcdef", "a.tmp-0123456789abcde", "a.tmp-0123456789abcdeg", "notes.tmp-of-mine-today-x"})
    EXPECT_FALSE(is_temporary_name(name)) << name;
  const TemporaryFolder folder;
  make_folders(folder / "step-1.tmp-0123456789abcdef/deep");
  write_file(folder / "step-1.tmp-0123456789abcdef/deep/x", "1");
  write_file(folder / "keep.tmp", "1");
  EXPECT_EQ(remove_stale_temporaries(folder.path()), 1);
  EXPECT_EQ(names_in(folder.path()), std::vector<std::string>{"keep.tmp"});
}

TEST(File, OneLockOfAFolderAtATime) {
  const TemporaryFolder folder;
  std::optional<FolderLock> first(folder / "");
  try {
    const FolderLock second(folder / "");
    FAIL() << "locked twice";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::kResource);
    EXPECT_NE(error.message().find("is writing to"), std::string::npos) << error.message();
  }
  first.reset();
  const FolderLock again(folder / "");
}

TEST(File, FoldersAndTrees) {
  const TemporaryFolder folder;
  make_folders(folder / "a/b/c/");
  make_folders(folder / "a/b/c");
  EXPECT_TRUE(is_folder(folder / "a/b/c"));
  write_file(folder / "outside", "1");
  std::filesystem::create_symlink(folder / "outside", folder / "a/link");
  const auto entries = list_folder(folder / "a");
  ASSERT_EQ(entries.size(), 2u);
  EXPECT_TRUE(entries[0].is_folder);
  EXPECT_FALSE(entries[1].is_folder);
  remove_tree(folder / "a");
  EXPECT_FALSE(file_exists(folder / "a"));
  EXPECT_TRUE(file_exists(folder / "outside")) << "a link is removed, not what it points to";
  remove_tree(folder / "a");
  EXPECT_EQ(parent_folder("x"), ".");
  EXPECT_EQ(parent_folder("a/b/"), "a");
  EXPECT_EQ(parent_folder("/a"), "/");
}

}  // namespace
}  // namespace galley
