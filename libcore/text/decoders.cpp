#include <algorithm>
#include <array>

#include "libcore/text/decoder.h"
#include "libcore/text/unicode.h"

namespace galley::text {
namespace {

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  if (from.empty()) return text;
  for (size_t at = 0; (at = text.find(from, at)) != std::string::npos; at += to.size()) text.replace(at, from.size(), to);
  return text;
}

/// Takes out the spaces that tokenization put before English punctuation.
std::string without_artifacts(std::string text) {
  constexpr std::array<std::array<std::string_view, 2>, 11> kRules{{{" .", "."},
                                                                    {" ?", "?"},
                                                                    {" !", "!"},
                                                                    {" ,", ","},
                                                                    {" ' ", "'"},
                                                                    {" n't", "n't"},
                                                                    {" 'm", "'m"},
                                                                    {" do not", " don't"},
                                                                    {" 's", "'s"},
                                                                    {" 've", "'ve"},
                                                                    {" 're", "'re"}}};
  for (const auto& [from, to] : kRules) text = replaced(std::move(text), from, to);
  return text;
}

/// The byte of <0x41>, or -1.
int fallback_byte(std::string_view piece) {
  if (piece.size() != 6 || !piece.starts_with("<0x") || piece[5] != '>') return -1;
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'A' && c <= 'F' ? c - 'A' + 10 : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  const int high = digit(piece[3]), low = digit(piece[4]);
  return high < 0 || low < 0 ? -1 : high * 16 + low;
}

}  // namespace

DecodeStep decode_word_piece(const std::string& prefix, bool cleanup) {
  return [prefix, cleanup](std::vector<std::string>& pieces) {
    for (size_t i = 0; i < pieces.size(); ++i) {
      if (i > 0) pieces[i] = pieces[i].starts_with(prefix) ? pieces[i].substr(prefix.size()) : " " + pieces[i];
      if (cleanup) pieces[i] = without_artifacts(std::move(pieces[i]));
    }
  };
}

DecodeStep decode_bpe(const std::string& suffix) {
  return [suffix](std::vector<std::string>& pieces) {
    for (size_t i = 0; i < pieces.size(); ++i) pieces[i] = replaced(std::move(pieces[i]), suffix, i + 1 == pieces.size() ? "" : " ");
  };
}

DecodeStep decode_metaspace(const std::string& replacement, bool prepended) {
  return [replacement, prepended](std::vector<std::string>& pieces) {
    for (size_t i = 0; i < pieces.size(); ++i) pieces[i] = replaced(std::move(pieces[i]), replacement, i == 0 && prepended ? "" : " ");
  };
}

DecodeStep decode_byte_level() {
  return [](std::vector<std::string>& pieces) {
    std::string bytes, all;
    for (const std::string& piece : pieces) all += bytes_of_piece(piece, bytes) ? bytes : piece;
    pieces.assign(1, replace_invalid_utf8(all));
  };
}

DecodeStep decode_byte_fallback() {
  return [](std::vector<std::string>& pieces) {
    std::vector<std::string> out;
    std::string bytes;
    const auto flush = [&] {
      if (bytes.empty()) return;
      const std::string valid = replace_invalid_utf8(bytes);
      if (valid == bytes) {
        out.push_back(bytes);
      } else {
        out.insert(out.end(), bytes.size(), "\xEF\xBF\xBD");
      }
      bytes.clear();
    };
    for (std::string& piece : pieces) {
      if (const int byte = fallback_byte(piece); byte >= 0) {
        bytes += static_cast<char>(byte);
      } else {
        flush();
        out.push_back(std::move(piece));
      }
    }
    flush();
    pieces = std::move(out);
  };
}

DecodeStep decode_fuse() {
  return [](std::vector<std::string>& pieces) {
    std::string all;
    for (const std::string& piece : pieces) all += piece;
    pieces.assign(1, std::move(all));
  };
}

DecodeStep decode_strip(const std::string& content, int64_t start, int64_t stop) {
  return [content, start, stop](std::vector<std::string>& pieces) {
    for (std::string& piece : pieces) {
      std::string_view text = piece;
      for (int64_t i = 0; i < start && text.starts_with(content); ++i) text.remove_prefix(content.size());
      for (int64_t i = 0; i < stop && text.ends_with(content); ++i) text.remove_suffix(content.size());
      piece = std::string(text);
    }
  };
}

DecodeStep decode_replace(std::shared_ptr<const Matcher> pattern, const std::string& content) {
  return [pattern, content](std::vector<std::string>& pieces) {
    for (std::string& piece : pieces) {
      std::string out;
      size_t at = 0;
      for (Range match; pattern->find(piece, at, piece.size(), match); at = match.end) {
        out.append(piece, at, match.begin - at).append(content);
      }
      piece = out.append(piece, at);
    }
  };
}

DecodeStep decode_ctc(const std::string& pad, const std::string& delimiter, bool cleanup) {
  return [pad, delimiter, cleanup](std::vector<std::string>& pieces) {
    pieces.erase(std::unique(pieces.begin(), pieces.end()), pieces.end());
    for (std::string& piece : pieces) {
      piece = replaced(std::move(piece), pad, "");
      if (cleanup) piece = replaced(without_artifacts(std::move(piece)), delimiter, " ");
    }
    std::erase_if(pieces, [](const std::string& piece) { return piece.empty(); });
  };
}

DecodeStep decode_spaces() {
  return [](std::vector<std::string>& pieces) {
    for (size_t i = 1; i < pieces.size(); ++i) pieces[i].insert(0, 1, ' ');
  };
}

}  // namespace galley::text
