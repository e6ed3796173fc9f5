#pragma once
// A second file beside the weights of a language model (weights.packed), which holds them as its programs read them: converted to the
// formats of kernels, with the results of `prepare`. A start maps it, and neither reads, checks and converts the weights nor packs them.
// The weights' own file stays what it is; the second one may be deleted at any time.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "libcore/infer/session.h"
#include "libcore/runtime/engine.h"

namespace galley {

class MappedFile;

/// The file: FILE.packed beside weights that are a file, galley.packed in a folder. It has digests of the weights' files, of the parts of
/// the recipe on which values depend, and of each array. Only for the host's memory, and one source of weights without adapters.
class PackedWeights {
 public:
  /// Null where weights.packed does not ask for a file: none, or auto without one. A file that is damaged, of other weights or of another
  /// version is made again, which a message says.
  static std::unique_ptr<PackedWeights> open(const Session& session, const Engine& engine);
  ~PackedWeights();

  /// Takes all arrays of the program from the file. False, and a message, if it lacks some in the program's formats.
  bool adopt(const Program& program, ParameterStore& store);
  /// Takes the results of `prepare` from the file, if they are those of this program.
  void adopt_prepared(Execution& execution);
  /// Remembers the results of `prepare` of an execution that has run.
  void keep_prepared(const Execution& execution);
  /// Writes the file, if it is missing, out of date or lacks what was prepared. A failure is a warning.
  void write(const ParameterStore& store);
  const std::string& path() const { return path_; }

 private:
  struct Entry {
    int64_t offset = 0, bytes = 0;
    std::string type, digest;
  };
  struct Source {
    std::string file, digest;
    int64_t bytes = 0, time = 0;
  };
  PackedWeights(std::string path, std::string key, std::string from);
  void read();
  bool is_current(std::vector<Source>& stored) const;
  void refuse(const std::string& reason);

  std::string path_, key_, from_;
  std::shared_ptr<const MappedFile> file_;  // null: none that can be used
  std::vector<Source> sources_;
  std::map<std::string, Entry> arrays_;                       // by name
  std::map<std::string, Entry> prepared_;                     // by the program's key
  std::map<std::string, std::vector<std::byte>> new_values_;  // results of `prepare` that the file lacks
  bool outdated_ = false;                                     // the file has to be written
};

}  // namespace galley
