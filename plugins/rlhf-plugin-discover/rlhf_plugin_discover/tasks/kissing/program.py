"""The 2 * 11 vectors along the axes: a valid configuration, and a small one."""

points = []
for i in range(11):
    for sign in (1, -1):
        vector = [0] * 11
        vector[i] = sign
        points.append(vector)
