"""Two vectors along each axis: a valid configuration, and a small one."""

D = int("{dimensions}")
points = []
for i in range(D):
    for sign in (1, -1):
        vector = [0] * D
        vector[i] = sign
        points.append(vector)
