"""The CIFAR ResNets of He et al. 2015, section 4.2, in PyTorch, with option-A shortcuts and the tensor names of Galley's zoo."""
import torch
from torch.nn import functional as F


class Block(torch.nn.Module):
    def __init__(self, inputs, channels, stride):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(inputs, channels, 3, stride, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(channels)
        self.conv2 = torch.nn.Conv2d(channels, channels, 3, 1, 1, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(channels)
        self.stride, self.more = stride, channels - inputs

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.stride != 1 or self.more:
            x = F.pad(x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.more // 2, self.more - self.more // 2))
        return F.relu(y + x)


class CifarResNet(torch.nn.Module):
    def __init__(self, depth, num_classes=10):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(3, 16, 3, 1, 1, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(16)
        inputs = 16
        for stage, channels in enumerate((16, 32, 64)):
            blocks = []
            for i in range((depth - 2) // 6):
                blocks.append(Block(inputs, channels, 2 if stage and i == 0 else 1))
                inputs = channels
            setattr(self, f"layer{stage + 1}", torch.nn.Sequential(*blocks))
        self.linear = torch.nn.Linear(64, num_classes)
        for module in self.modules():
            if isinstance(module, (torch.nn.Conv2d, torch.nn.Linear)):
                torch.nn.init.kaiming_normal_(module.weight)

    def forward(self, x):
        x = F.relu(self.bn1(self.conv1(x)))
        return self.linear(self.layer3(self.layer2(self.layer1(x))).mean((2, 3)))
