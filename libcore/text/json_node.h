#pragma once
// A place in a JSON file: every error names the file and the path of keys.

#include <cstdint>
#include <functional>
#include <memory>
#include <nlohmann/json_fwd.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "libcore/base/error.h"

namespace galley::text {

class JsonNode {
 public:
  /// Throws (kInput) with line and column where the text is not JSON, e.g. has a lone surrogate or is cut off; `path` is its name.
  static JsonNode parse(std::string_view text, const std::string& path);

  const nlohmann::json& json() const { return *value_; }
  /// "model.merges[3]"; empty for the whole file.
  const std::string& place() const { return place_; }
  /// Whether there is such a member that is not null.
  bool has(std::string_view key) const;
  JsonNode at(std::string_view key) const;
  std::vector<JsonNode> elements() const;
  std::vector<std::pair<std::string, JsonNode>> members() const;

  std::string text() const;
  int64_t integer() const;
  double number() const;
  bool flag() const;
  std::string text(std::string_view key) const { return at(key).text(); }
  std::string text(std::string_view key, std::string_view otherwise) const;
  bool flag(std::string_view key, bool otherwise) const;
  int64_t integer(std::string_view key, int64_t otherwise) const;
  std::optional<std::string> optional_text(std::string_view key) const;

  /// An error (kInput) at this place, to throw.
  Error error(const std::string& message) const;
  [[noreturn]] void fail(const std::string& message) const;

 private:
  JsonNode(std::shared_ptr<const nlohmann::json> root, const nlohmann::json* value, std::shared_ptr<const std::string> path,
           std::string place)
      : root_(std::move(root)), value_(value), path_(std::move(path)), place_(std::move(place)) {}
  std::shared_ptr<const nlohmann::json> root_;
  const nlohmann::json* value_;
  std::shared_ptr<const std::string> path_;
  std::string place_;
};

}  // namespace galley::text
