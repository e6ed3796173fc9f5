#include "libcore/text/json_node.h"

#include <algorithm>
#include <nlohmann/json.hpp>

#include "libcore/base/error.h"

namespace galley::text {

JsonNode JsonNode::parse(std::string_view text, const std::string& path) {
  try {
    auto root = std::make_shared<const nlohmann::json>(nlohmann::json::parse(text.begin(), text.end()));
    const nlohmann::json* value = root.get();
    return JsonNode(std::move(root), value, std::make_shared<const std::string>(path), "");
  } catch (const nlohmann::json::parse_error& error) {
    const size_t at = std::min(error.byte, text.size());
    const std::string_view before = text.substr(0, at > 0 ? at - 1 : 0);
    const size_t newline = before.rfind('\n');
    std::string message = error.what();
    if (const size_t colon = message.find(": "); colon != std::string::npos) message = message.substr(colon + 2);
    throw Error(ErrorCode::kInput, "is not valid JSON: " + message)
        .at({.file = path,
             .line = static_cast<int>(std::count(before.begin(), before.end(), '\n')) + 1,
             .column = static_cast<int>(before.size() - (newline == std::string_view::npos ? 0 : newline + 1)) + 1});
  } catch (const nlohmann::json::out_of_range&) {
    throw Error(ErrorCode::kInput, "is not valid JSON: it has a number that is too large").at({.file = path});
  }
}

Error JsonNode::error(const std::string& message) const {
  Error error(ErrorCode::kInput, (place_.empty() ? "" : place_ + ": ") + message);
  error.at({.file = *path_});
  return error;
}
void JsonNode::fail(const std::string& message) const { throw error(message); }

bool JsonNode::has(std::string_view key) const {
  if (!value_->is_object()) return false;
  const auto found = value_->find(key);
  return found != value_->end() && !found->is_null();
}

JsonNode JsonNode::at(std::string_view key) const {
  if (!value_->is_object()) fail(cat("must be an object with the key '", key, "'"));
  const auto found = value_->find(key);
  if (found == value_->end()) fail(cat("the key '", key, "' is missing"));
  return JsonNode(root_, &*found, path_, place_.empty() ? std::string(key) : cat(place_, ".", key));
}

std::vector<JsonNode> JsonNode::elements() const {
  if (!value_->is_array()) fail("must be a list");
  std::vector<JsonNode> nodes;
  for (const auto& element : *value_) nodes.push_back(JsonNode(root_, &element, path_, cat(place_, "[", nodes.size(), "]")));
  return nodes;
}

std::vector<std::pair<std::string, JsonNode>> JsonNode::members() const {
  if (!value_->is_object()) fail("must be an object");
  std::vector<std::pair<std::string, JsonNode>> nodes;
  for (const auto& [key, member] : value_->items()) nodes.emplace_back(key, JsonNode(root_, &member, path_, cat(place_, ".", key)));
  return nodes;
}

std::string JsonNode::text() const {
  if (!value_->is_string()) fail("must be a string");
  return value_->get<std::string>();
}
int64_t JsonNode::integer() const {
  if (!value_->is_number_integer() || (value_->is_number_unsigned() && value_->get<uint64_t>() > uint64_t{INT64_MAX}))
    fail("must be an integer");
  return value_->get<int64_t>();
}
double JsonNode::number() const {
  if (!value_->is_number()) fail("must be a number");
  return value_->get<double>();
}
bool JsonNode::flag() const {
  if (!value_->is_boolean()) fail("must be true or false");
  return value_->get<bool>();
}
std::string JsonNode::text(std::string_view key, std::string_view otherwise) const {
  return has(key) ? at(key).text() : std::string(otherwise);
}
bool JsonNode::flag(std::string_view key, bool otherwise) const { return has(key) ? at(key).flag() : otherwise; }
int64_t JsonNode::integer(std::string_view key, int64_t otherwise) const { return has(key) ? at(key).integer() : otherwise; }
std::optional<std::string> JsonNode::optional_text(std::string_view key) const {
  if (!has(key)) return std::nullopt;
  return at(key).text();
}

}  // namespace galley::text
