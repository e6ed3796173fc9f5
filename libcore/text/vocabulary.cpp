#include "libcore/text/vocabulary.h"

#include "libcore/base/error.h"

namespace galley::text {

void Vocabulary::add(std::string_view piece, int64_t id) {
  GALLEY_CHECK_INPUT(id >= 0 && id <= kLargestId, "the id ", id, " of '", piece, "' is out of range: ids are 0 to ", kLargestId);
  GALLEY_CHECK_INPUT(!has(id), "the id ", id, " belongs to '", has(id) ? *by_id_[static_cast<size_t>(id)] : "", "' and to '", piece,
                     "': each id has one piece");
  const auto [entry, added] = ids_.emplace(piece, static_cast<int32_t>(id));
  GALLEY_CHECK_INPUT(added, "the piece '", piece, "' has the ids ", entry->second, " and ", id, ": each piece has one id");
  if (id >= size()) by_id_.resize(static_cast<size_t>(id) + 1, nullptr);
  by_id_[static_cast<size_t>(id)] = &entry->first;
}

const std::string& Vocabulary::piece(int64_t id) const {
  GALLEY_CHECK_INPUT(id >= 0 && id < size(), "token ", id, " is out of range: the vocabulary has ids 0 to ", size() - 1);
  GALLEY_CHECK_INPUT(has(id), "token ", id, " has no piece: the vocabulary of ", pieces(), " pieces leaves it out");
  return *by_id_[static_cast<size_t>(id)];
}

std::optional<int32_t> Vocabulary::find(std::string_view piece) const {
  const auto found = ids_.find(piece);
  if (found == ids_.end()) return std::nullopt;
  return found->second;
}

}  // namespace galley::text
