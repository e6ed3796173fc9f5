// galley VERB ... execs galley-VERB, as git does: first the one in this program's folder, then the one on PATH. Without a verb it prints
// one line about each.

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <string>
#include <vector>

#include "libcore/base/error.h"
#include "tools/common/completion.h"
#include "tools/common/version.h"

namespace {

std::vector<std::string> verbs(const std::filesystem::path& folder) {
  std::vector<std::string> found;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(folder, ignored)) {
    const std::string name = entry.path().filename();
    if (name.starts_with("galley-") && access(entry.path().c_str(), X_OK) == 0) found.push_back(name.substr(7));
  }
  std::sort(found.begin(), found.end());
  return found;
}

/// The first line of what `program --help` prints; "" where it prints nothing.
std::string about(const std::filesystem::path& program) {
  int ends[2];
  if (pipe(ends) != 0) return "";
  const pid_t child = fork();
  if (child == 0) {
    dup2(ends[1], STDOUT_FILENO);
    close(ends[0]);
    close(ends[1]);
    execl(program.c_str(), program.c_str(), "--help", nullptr);
    _exit(127);
  }
  close(ends[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t count; child > 0 && (count = read(ends[0], buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<size_t>(count));
  close(ends[0]);
  if (child > 0) waitpid(child, nullptr, 0);
  return text.substr(0, text.find('\n'));
}

void print_verbs(const std::filesystem::path& folder) {
  const std::vector<std::string> names = verbs(folder);
  size_t width = 0;
  for (const std::string& name : names) width = std::max(width, name.size());
  std::printf(
      "Galley: a deep-learning toolkit for the shell.\n\nusage: galley VERB [arguments]   (the same as galley-VERB "
      "[arguments])\n\nverbs:\n");
  for (const std::string& name : names)
    std::printf("  %-*s  %s\n", static_cast<int>(width), name.c_str(), about(folder / ("galley-" + name)).c_str());
  std::printf(
      "\n'galley VERB --help' explains one; 'galley recipes ls' lists recipes to start with.\n"
      "'source <(galley --completion bash)' completes all words in bash; zsh and fish likewise.\n");
}

}  // namespace

int main(int argc, char** argv) {
  std::error_code ignored;
  const std::filesystem::path folder = std::filesystem::read_symlink("/proc/self/exe", ignored).parent_path();
  const std::string verb = argc > 1 ? argv[1] : "--help";
  if (verb == "--help" || verb == "-h" || verb == "help") {
    print_verbs(folder);
    return 0;
  }
  if (verb == "--version" || verb == "-V") {
    std::printf("galley %s (%s)\n", galley::tools::kVersion, galley::tools::kCommit);
    return 0;
  }
  if (verb == "--completion") {
    std::vector<std::string> tools;
    for (const std::string& name : verbs(folder)) tools.push_back("galley-" + name);
    try {
      std::fputs(galley::tools::galley_completion_script(argc > 2 ? argv[2] : "", tools).c_str(), stdout);
    } catch (const galley::Error& error) {
      std::fprintf(stderr, "%s\n", error.text().c_str());
      return static_cast<int>(error.code());
    }
    return 0;
  }
  const std::string program = "galley-" + verb;
  argv[1] = const_cast<char*>(program.c_str());
  execv((folder / program).c_str(), argv + 1);
  execvp(program.c_str(), argv + 1);
  const std::vector<std::string> names = verbs(folder);
  const std::string near = galley::nearest(verb, names);
  std::string known;
  for (const std::string& name : names) known += (known.empty() ? "known: " : ", ") + name;
  std::fprintf(stderr, "error: galley has no verb '%s'; %s\n", verb.c_str(),
               near.empty() ? known.c_str() : ("did you mean '" + near + "'?").c_str());
  return 2;
}
