#include <utf8proc.h>

#include <cstring>

#include "libcore/base/error.h"
#include "libcore/text/normalizer.h"

namespace galley::text {
namespace {

/// The ranges of BERT's tokenizer, with the bounds that `tokenizers` uses (0x2B920).
bool is_chinese(uint32_t c) {
  return (c >= 0x4E00 && c <= 0x9FFF) || (c >= 0x3400 && c <= 0x4DBF) || (c >= 0x20000 && c <= 0x2A6DF) || (c >= 0x2A700 && c <= 0x2B73F) ||
         (c >= 0x2B740 && c <= 0x2B81F) || (c >= 0x2B920 && c <= 0x2CEAF) || (c >= 0xF900 && c <= 0xFAFF) || (c >= 0x2F800 && c <= 0x2FA1F);
}

void to_form(Buffer& buffer, const NormalForms& forms) {
  if (forms.unchanged(buffer.text())) return;
  buffer.rewrite([&](Buffer::Writer& writer) {
    const std::string& text = buffer.text();
    std::string part;
    for (size_t at = 0; at < text.size();) {
      const size_t end = forms.next(text, at, part);
      writer.emit(part, at, end);
      at = end;
    }
  });
}

/// The compiled map: a double array (Darts) over normal forms that end with a zero byte.
class CharsMap {
 public:
  explicit CharsMap(std::string bytes) {
    uint32_t trie_bytes = 0;
    GALLEY_CHECK_INPUT(bytes.size() >= 4, "precompiled_charsmap has ", bytes.size(), " bytes: it is cut off");
    std::memcpy(&trie_bytes, bytes.data(), 4);
    GALLEY_CHECK_INPUT(trie_bytes % 4 == 0 && trie_bytes <= bytes.size() - 4, "precompiled_charsmap says that its trie has ", trie_bytes,
                       " bytes, but ", bytes.size() - 4, " follow: it is damaged");
    units_.resize(trie_bytes / 4);
    if (trie_bytes > 0) std::memcpy(units_.data(), bytes.data() + 4, trie_bytes);
    forms_ = bytes.substr(4 + trie_bytes);
  }
  /// The normal form of the shortest beginning of `key` that the map has.
  bool find(std::string_view key, std::string_view& form) const {
    if (units_.empty()) return false;
    size_t at = offset(units_[0]);
    for (const char c : key) {
      const auto byte = static_cast<uint8_t>(c);
      if (byte == 0) break;
      at ^= byte;
      if (at >= units_.size()) return false;
      const uint32_t unit = units_[at];
      if ((unit & (1u << 31 | 0xFF)) != byte) return false;
      at ^= offset(unit);
      if (unit >> 8 & 1) {
        if (at >= units_.size()) return false;
        const size_t place = units_[at] & 0x7FFFFFFF;
        if (place >= forms_.size()) return false;
        form = std::string_view(forms_).substr(place);
        form = form.substr(0, form.find('\0'));
        return true;
      }
    }
    return false;
  }

 private:
  static size_t offset(uint32_t unit) { return size_t{unit >> 10} << ((unit & 1u << 9) >> 6); }
  std::vector<uint32_t> units_;
  std::string forms_;
};

void apply_map(Buffer& buffer, const CharsMap& map) {
  buffer.rewrite([&](Buffer::Writer& writer) {
    const std::string_view text = buffer.text();
    const auto put = [&](size_t at, size_t end) {
      std::string_view form;
      writer.emit(map.find(text.substr(at, end - at), form) ? form : text.substr(at, end - at), at, end);
    };
    for (size_t at = 0; at < text.size();) {
      // A cluster of characters that a reader sees as one.
      const char* p = text.data() + at;
      utf8proc_int32_t state = 0;
      uint32_t before = next_char(p);
      size_t end = static_cast<size_t>(p - text.data());
      while (end < text.size()) {
        const uint32_t c = next_char(p);
        if (utf8proc_grapheme_break_stateful(static_cast<utf8proc_int32_t>(before), static_cast<utf8proc_int32_t>(c), &state)) break;
        before = c;
        end = static_cast<size_t>(p - text.data());
      }
      std::string_view form;
      if (end - at < 6 && map.find(text.substr(at, end - at), form)) {
        writer.emit(form, at, end);
      } else {
        for (size_t i = at; i < end;) {
          const size_t n = char_length(text.data() + i);
          put(i, i + n);
          i += n;
        }
      }
      at = end;
    }
  });
}

}  // namespace

Normalizer normal_form(NormalForm form) {
  return [&forms = NormalForms::get(form)](Buffer& buffer) { to_form(buffer, forms); };
}

Normalizer lowercase() {
  return [](Buffer& buffer) { buffer.map([](uint32_t c, std::string& out) { append_lowercase(out, c); }); };
}

Normalizer strip_accents() {
  return [](Buffer& buffer) {
    buffer.map([](uint32_t c, std::string& out) {
      if (!is_mark(c)) append_utf8(out, c);
    });
  };
}

Normalizer bert_normalizer(const BertNormalizer& options) {
  return [options](Buffer& buffer) {
    if (options.clean_text) {
      buffer.map([](uint32_t c, std::string& out) {
        const bool line = c == '\t' || c == '\n' || c == '\r';
        if (c == 0 || c == 0xFFFD || (!line && is_other(c))) return;
        append_utf8(out, is_white_space(c) ? ' ' : c);
      });
    }
    if (options.chinese) {
      buffer.map([](uint32_t c, std::string& out) {
        const bool chinese = is_chinese(c);
        if (chinese) out += ' ';
        append_utf8(out, c);
        if (chinese) out += ' ';
      });
    }
    if (options.strip_accents) {
      to_form(buffer, NormalForms::get(NormalForm::kNfd));
      buffer.map([](uint32_t c, std::string& out) {
        if (!is_nonspacing_mark(c)) append_utf8(out, c);
      });
    }
    if (options.lowercase) lowercase()(buffer);
  };
}

Normalizer strip(bool left, bool right) {
  return [left, right](Buffer& buffer) {
    const std::string& text = buffer.text();
    size_t begin = 0, end = text.size();
    while (left && begin < end) {
      const char* p = text.data() + begin;
      if (!is_white_space(next_char(p))) break;
      begin = static_cast<size_t>(p - text.data());
    }
    while (right && begin < end) {
      size_t last = end - 1;
      while (last > begin && (static_cast<uint8_t>(text[last]) & 0xC0) == 0x80) --last;
      const char* p = text.data() + last;
      if (!is_white_space(next_char(p))) break;
      end = last;
    }
    buffer.rewrite([&](Buffer::Writer& writer) { writer.emit(std::string_view(text).substr(begin, end - begin), begin, end); });
  };
}

Normalizer replace(std::shared_ptr<const Matcher> pattern, const std::string& content) {
  return [pattern, content](Buffer& buffer) {
    buffer.rewrite([&](Buffer::Writer& writer) {
      const std::string_view text = buffer.text();
      size_t at = 0;
      for (Range match; pattern->find(text, at, text.size(), match); at = match.end) {
        writer.emit(text.substr(at, match.begin - at), at, match.begin);
        writer.emit(content, match.begin, match.end);
      }
      writer.emit(text.substr(at), at, text.size());
    });
  };
}

Normalizer prepend(const std::string& added) {
  return [added](Buffer& buffer) {
    if (buffer.text().empty()) return;
    buffer.rewrite([&](Buffer::Writer& writer) {
      writer.emit(added, 0, 0);
      writer.emit(buffer.text(), 0, buffer.text().size());
    });
  };
}

Normalizer nmt() {
  return [](Buffer& buffer) {
    buffer.map([](uint32_t c, std::string& out) {
      if ((c >= 1 && c <= 8) || c == 0x0B || (c >= 0x0E && c <= 0x1F) || c == 0x7F || c == 0x8F || c == 0x9F) return;
      const bool space = c == 9 || c == 0x0A || c == 0x0C || c == 0x0D || c == 0x1680 || (c >= 0x200B && c <= 0x200F) || c == 0x2028 ||
                         c == 0x2029 || c == 0x2581 || c == 0xFEFF || c == 0xFFFD;
      append_utf8(out, space ? ' ' : c);
    });
  };
}

Normalizer byte_level_normalizer() {
  return [](Buffer& buffer) {
    buffer.map([](uint32_t c, std::string& out) {
      std::string bytes;
      append_utf8(bytes, c);
      append_byte_characters(out, bytes);
    });
  };
}

Normalizer precompiled(std::string charsmap) {
  return [map = std::make_shared<const CharsMap>(std::move(charsmap))](Buffer& buffer) { apply_map(buffer, *map); };
}

}  // namespace galley::text
