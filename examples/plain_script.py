"""daypoint in a script without Hydra. Comments mark the lines that were added or changed.

python examples/plain_script.py
"""

import torch
from torch import nn

import daypoint  # added

lr, epochs = 0.1, 5
torch.manual_seed(0)
features = torch.randn(256, 4)
targets = features @ torch.tensor([[1.0], [-2.0], [0.5], [3.0]]) + 0.1 * torch.randn(256, 1)

model = nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=lr)
criterion = nn.MSELoss()

with daypoint.open_run({"lr": lr, "epochs": epochs}, monitor="loss") as run:  # added
    for _ in run.epochs(epochs):  # was: for _ in range(epochs)
        for x, y in zip(features.split(32), targets.split(32), strict=True):
            loss = daypoint.scalar_loss(criterion(model(x), y))  # was: loss = criterion(model(x), y)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            run.log(loss=loss)  # added
        run.save(model=model, optimizer=optimizer)  # added
