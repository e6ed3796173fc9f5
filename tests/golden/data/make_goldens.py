"""Makes images.bin.gz: results of torchvision (tensor path) and Pillow, for tests/data.

Made with torch 2.15.0, torchvision 0.29.2, Pillow 13.0.0, numpy as installed. Usage: python make_goldens.py
A record: u32 length of the name, name, u8 type (0 u8, 1 f32), u32 rank, u32 sizes, data; little-endian. Images are [H,W,C].
"""
import gzip
import io
import struct
from pathlib import Path

import numpy as np
import torch
import torchvision.transforms.functional as F
from PIL import Image
from torchvision.transforms import InterpolationMode as Mode
from torchvision.transforms.autoaugment import AutoAugment, AutoAugmentPolicy, _apply_op

out = gzip.GzipFile(Path(__file__).parent / "images.bin.gz", "wb", mtime=0)


def put(name, array):
    array = np.ascontiguousarray(array)
    kind = {np.dtype(np.uint8): 0, np.dtype(np.float32): 1}[array.dtype]
    out.write(struct.pack("<I", len(name)) + name.encode() + struct.pack("<BI", kind, array.ndim))
    out.write(struct.pack(f"<{array.ndim}I", *array.shape) + array.tobytes())


def hwc(tensor):
    return tensor.permute(1, 2, 0).numpy()


random = np.random.default_rng(7)
y, x = np.mgrid[0:29, 0:37]
smooth = np.stack([128 + 100 * np.sin(x / 5 + y / 9), 6.5 * x + 0.3 * y, 255 * ((x // 4 + y // 4) % 2)], axis=-1)
pixels = np.clip(smooth + random.normal(0, 12, smooth.shape), 20, 235).astype(np.uint8)
image = torch.from_numpy(pixels).permute(2, 0, 1).contiguous()
floats = image.float() / 255
put("image", pixels)
put("image f32", hwc(floats))

modes = {"nearest": Mode.NEAREST, "nearest_exact": Mode.NEAREST_EXACT, "bilinear": Mode.BILINEAR, "bicubic": Mode.BICUBIC}
for mode, interpolation in modes.items():
    for size in ([12, 15], [31, 50], [29, 20], [5, 60]):
        for antialias in (True, False):
            name = f"resize {mode} {size[0]} {size[1]} {int(antialias)}"
            put(name, hwc(F.resize(image, size, interpolation, antialias=antialias)))
            if mode[0] == "b" and size == [12, 15]:
                put(name + " f32", hwc(F.resize(floats, size, interpolation, antialias=antialias)))
put("resize shorter 16", hwc(F.resize(image, 16)))
put("resize shorter 16 max 18", hwc(F.resize(image, 16, max_size=18)))
put("resize pillow 12 15", np.asarray(Image.fromarray(pixels).resize((15, 12), Image.BILINEAR)))
# Full contrast, for which a cubic filter overshoots.
edges = np.kron(np.random.default_rng(8).integers(0, 2, (6, 8, 3)), np.ones((5, 5, 1))).astype(np.uint8) * 255
put("edges", edges)
for name, mode in (("bilinear", Image.BILINEAR), ("bicubic", Image.BICUBIC)):
    for height, width in ((12, 15), (45, 61), (30, 17)):
        put(f"edges {name} {height} {width} pillow", np.asarray(Image.fromarray(edges).resize((width, height), mode)))
        put(f"edges {name} {height} {width} tensor",
            hwc(F.resize(torch.from_numpy(edges).permute(2, 0, 1).contiguous(), [height, width], modes[name], antialias=True)))
put("center_crop 20 20", hwc(F.center_crop(image, [20, 20])))
put("center_crop 17 24", hwc(F.center_crop(image, [17, 24])))
put("center_crop 36 30", hwc(F.center_crop(image, [36, 30])))
for mode in ("constant", "edge", "reflect", "symmetric"):
    put(f"pad {mode}", hwc(F.pad(image, [3, 1, 4, 2], fill=9 if mode == "constant" else 0, padding_mode=mode)))
put("hflip", hwc(F.hflip(image)))
put("vflip", hwc(F.vflip(image)))
for name, source in (("", image), (" f32", floats)):
    put("grayscale" + name, hwc(F.rgb_to_grayscale(source, 1)))
    for factor in (0.4, 1.7):
        put(f"brightness {factor}{name}", hwc(F.adjust_brightness(source, factor)))
        put(f"contrast {factor}{name}", hwc(F.adjust_contrast(source, factor)))
        put(f"saturation {factor}{name}", hwc(F.adjust_saturation(source, factor)))
        put(f"sharpness {factor}{name}", hwc(F.adjust_sharpness(source, factor)))
    for factor in (-0.5, 0.3):
        put(f"hue {factor}{name}", hwc(F.adjust_hue(source, factor)))
put("normalize", hwc(F.normalize(floats, [0.485, 0.456, 0.406], [0.229, 0.224, 0.225])))
put("to u8", hwc(F.convert_image_dtype(floats * 0.93, torch.uint8)))

operations = {
    "ShearX": [-0.25, 0.1], "ShearY": [-0.1, 0.3], "TranslateX": [-7.8, 4.2], "TranslateY": [-3.1, 9.0], "Rotate": [-23.0, 13.0],
    "Brightness": [-0.6, 0.5], "Color": [-0.9, 0.3], "Contrast": [-0.4, 0.8], "Sharpness": [-0.9, 0.9], "Posterize": [4.0, 6.0],
    "Solarize": [85.0, 140.3], "AutoContrast": [0.0], "Equalize": [0.0], "Invert": [0.0],
}
for name, magnitudes in operations.items():
    for magnitude in magnitudes:
        put(f"augment {name} {magnitude} nearest", hwc(_apply_op(image, name, magnitude, Mode.NEAREST, None)))
for name in ("ShearX", "Rotate", "TranslateY"):
    put(f"augment {name} {operations[name][0]} bilinear", hwc(_apply_op(image, name, operations[name][0], Mode.BILINEAR, None)))
    put(f"augment {name} {operations[name][0]} fill", hwc(_apply_op(image, name, operations[name][0], Mode.NEAREST, [50.0, 60.0, 70.0])))
for name, (values, signed) in AutoAugment()._augmentation_space(10, (29, 37)).items():
    put(f"magnitudes {name} {int(signed)}", np.broadcast_to(values.float().numpy(), (10,)).astype(np.float32))
for policy in AutoAugmentPolicy:
    text = "".join(f"{o} {p} {-1 if m is None else m};" for sub in AutoAugment(policy).policies for o, p, m in sub)
    put(f"policy {policy.value}", np.frombuffer(text.encode(), np.uint8))


def put_file(name, picture, **options):
    buffer = io.BytesIO()
    picture.save(buffer, **options)
    data = buffer.getvalue()
    put(f"file {name}", np.frombuffer(data, np.uint8))
    put(f"rgb {name}", np.asarray(Image.open(io.BytesIO(data)).convert("RGB")))
    if picture.mode in ("RGB", "L"):
        put(f"gray {name}", np.asarray(Image.open(io.BytesIO(data)).convert("L"))[:, :, None])


rgb = Image.fromarray(pixels)
put_file("jpeg 420", rgb, format="JPEG", quality=85)
put_file("jpeg 444", rgb, format="JPEG", quality=95, subsampling=0)
put_file("jpeg progressive", rgb, format="JPEG", quality=80, progressive=True)
put_file("jpeg gray", rgb.convert("L"), format="JPEG", quality=85)
put_file("jpeg cmyk", rgb.convert("CMYK"), format="JPEG", quality=90)
put_file("png rgb", rgb, format="PNG")
put_file("png gray", rgb.convert("L"), format="PNG")
put_file("png palette", rgb.quantize(16), format="PNG")
put_file("png rgba", Image.fromarray(np.dstack([pixels, np.full(pixels.shape[:2], 130, np.uint8)])), format="PNG")
put_file("bmp 24", rgb, format="BMP")
put_file("bmp 8", rgb.convert("L"), format="BMP")
for name in ("GIF", "WEBP", "TIFF"):
    buffer = io.BytesIO()
    rgb.save(buffer, format=name)
    put(f"file {name}", np.frombuffer(buffer.getvalue()[:64], np.uint8))
out.close()
