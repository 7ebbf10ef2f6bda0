"""Images a second that can be fed, beside PyTorch's DataLoader: a folder of JPEG files (`loader --make FOLDER`), a random
part of each at 224×224, mirrored in half of all cases, normalised, in batches of 32; as many processes there as threads
here, in turns. Exit status: 0 all was measured.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time

BATCH, SIDE = 32, 224


def arguments():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--loader", default="target/release/examples/loader", help="the program [%(default)s]")
    parser.add_argument("--folder", help="images, a folder a class [500 made for this]")
    parser.add_argument("--threads", default="1,2", help="[%(default)s]")
    parser.add_argument("--rounds", type=int, default=3, help="[%(default)s]")
    return parser.parse_args()


def theirs(folder, workers):
    import torch
    from torchvision import datasets, transforms

    torch.set_num_threads(1)
    steps = [transforms.RandomResizedCrop(SIDE), transforms.RandomHorizontalFlip(), transforms.ToTensor()]
    steps.append(transforms.Normalize((0.485, 0.456, 0.406), (0.229, 0.224, 0.225)))
    data = datasets.ImageFolder(folder, transforms.Compose(steps))
    loader = torch.utils.data.DataLoader(
        data, BATCH, shuffle=True, num_workers=workers, drop_last=True, persistent_workers=True
    )

    def epoch():
        return sum(len(labels) for _, labels in loader)

    # workers start, and read the files for the first time
    epoch()
    begin = time.perf_counter()
    seen = sum(epoch() for _ in range(2))
    return seen / (time.perf_counter() - begin)


def ours(given, folder, threads):
    command = [given.loader, folder, str(threads), str(SIDE)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return float(re.search(r": (\d+) samples/s", done.stdout)[1])


def main():
    given = arguments()
    with tempfile.TemporaryDirectory() as made:
        folder = given.folder or made
        if not given.folder:
            subprocess.run([given.loader, "--make", folder], check=True)
        print(f"{'threads':>7} {'tensorwire':>16} {'DataLoader':>16} {'ratio':>6}")
        for threads in map(int, given.threads.split(",")):
            rounds = [(ours(given, folder, threads), theirs(folder, threads)) for _ in range(given.rounds)]
            found, expected = (statistics.median(one[at] for one in rounds) for at in (0, 1))
            ratio = statistics.median(one[0] / one[1] for one in rounds)
            print(f"{threads:7} {found:6.0f} samples/s {expected:6.0f} samples/s {ratio:6.2f}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
