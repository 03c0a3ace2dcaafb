/* Spectrogram and pitch of a sound, drawn when it comes into view. */
const Sound = (() => {
  const RATE = 16000;
  const SIZE = 512; // samples of a spectrum, 32 ms
  const [LOW, HIGH] = [75, 600]; // Hz, of the pitch
  const RANGE = 70; // dB below the loudest
  const LONGEST = 30; // seconds that are drawn
  const STRENGTH = 0.5; // autocorrelation from which on a frame has a pitch
  const COLOURS = [[0, 0, 4], [66, 10, 104], [147, 38, 103], [221, 81, 58], [252, 165, 10], [252, 255, 164]];

  const bytesOf = async (url) => {
    if (url.startsWith("file:")) throw new Error("a linked file can be played, but not drawn");
    if (!url.startsWith("data:")) return (await fetch(url)).arrayBuffer();
    return Uint8Array.from(atob(url.slice(url.indexOf(",") + 1)), (letter) => letter.charCodeAt(0)).buffer;
  };
  /* Samples at 16 kHz, channels averaged. */
  const decode = async (url) => {
    const audio = await new OfflineAudioContext(1, RATE, RATE).decodeAudioData(await bytesOf(url));
    const mono = new Float32Array(audio.length);
    for (let c = 0; c < audio.numberOfChannels; c += 1) {
      audio.getChannelData(c).forEach((value, n) => (mono[n] += value / audio.numberOfChannels));
    }
    return mono;
  };
  const level = (samples) => Math.sqrt(samples.reduce((sum, value) => sum + value * value, 0) / Math.max(1, samples.length));

  /* In place, of a length that is a power of two. */
  const transform = (re, im) => {
    const n = re.length;
    for (let i = 1, j = 0; i < n; i += 1) {
      let bit = n >> 1;
      for (; j & bit; bit >>= 1) j ^= bit;
      j ^= bit;
      if (i < j) {
        [re[i], re[j]] = [re[j], re[i]];
        [im[i], im[j]] = [im[j], im[i]];
      }
    }
    for (let half = 1; half < n; half *= 2) {
      for (let k = 0; k < half; k += 1) {
        const [c, s] = [Math.cos((-Math.PI * k) / half), Math.sin((-Math.PI * k) / half)];
        for (let i = k; i < n; i += 2 * half) {
          const j = i + half;
          const [a, b] = [re[j] * c - im[j] * s, re[j] * s + im[j] * c];
          [re[j], im[j]] = [re[i] - a, im[i] - b];
          [re[i], im[i]] = [re[i] + a, im[i] + b];
        }
      }
    }
  };
  const WINDOW = Float32Array.from({ length: SIZE }, (_, n) => 0.5 - 0.5 * Math.cos((2 * Math.PI * n) / SIZE));
  /* Levels in dB below the loudest, column by column, 256 of each. */
  const spectrogram = (samples, columns) => {
    const levels = new Float32Array(columns * (SIZE / 2));
    let loudest = -Infinity;
    for (let column = 0; column < columns; column += 1) {
      const start = Math.round((column * Math.max(0, samples.length - SIZE)) / Math.max(1, columns - 1));
      const [re, im] = [new Float32Array(SIZE), new Float32Array(SIZE)];
      for (let n = 0; n < SIZE; n += 1) re[n] = (samples[start + n] || 0) * WINDOW[n];
      transform(re, im);
      for (let bin = 0; bin < SIZE / 2; bin += 1) {
        const value = 10 * Math.log10(re[bin] ** 2 + im[bin] ** 2 + 1e-10);
        levels[column * (SIZE / 2) + bin] = value;
        loudest = Math.max(loudest, value);
      }
    }
    return levels.map((value) => value - loudest);
  };
  /* Pitch of every 10 ms in Hz, 0 where there is none: the first peak of the autocorrelation near the highest. */
  const pitch = (samples) => {
    const [width, hop] = [640, 160];
    const [shortest, longest] = [Math.floor(RATE / HIGH), Math.ceil(RATE / LOW)];
    const loudest = samples.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
    const track = [];
    for (let start = 0; start + width + longest < samples.length; start += hop) {
      const frame = samples.subarray(start, start + width + longest);
      if (frame.reduce((most, value) => Math.max(most, Math.abs(value)), 0) < 0.03 * loudest || loudest < 1e-5) {
        track.push(0);
        continue;
      }
      const r = new Float32Array(longest + 2);
      let best = 0;
      for (let lag = shortest - 1; lag <= longest; lag += 1) {
        let [sum, a, b] = [0, 0, 0];
        for (let n = 0; n < width; n += 1) {
          sum += frame[n] * frame[n + lag];
          a += frame[n] ** 2;
          b += frame[n + lag] ** 2;
        }
        r[lag] = sum / Math.sqrt(a * b + 1e-12);
        if (lag >= shortest) best = Math.max(best, r[lag]);
      }
      let lag = shortest;
      while (lag < longest && !(r[lag] >= 0.9 * best && r[lag] >= r[lag - 1] && r[lag] >= r[lag + 1])) lag += 1;
      if (best < STRENGTH || lag >= longest) {
        track.push(0);
        continue;
      }
      const bend = r[lag - 1] - 2 * r[lag] + r[lag + 1];
      track.push(RATE / (lag + (bend ? (0.5 * (r[lag - 1] - r[lag + 1])) / bend : 0)));
    }
    return track;
  };
  const colour = (share) => {
    const at = Math.min(0.999, Math.max(0, share)) * (COLOURS.length - 1);
    const [low, high] = [COLOURS[Math.floor(at)], COLOURS[Math.floor(at) + 1]];
    return low.map((value, i) => value + (high[i] - value) * (at % 1));
  };
  const paint = (canvas, samples, track) => {
    const columns = Math.min(canvas.width, Math.max(2, Math.round(samples.length / 80)));
    const levels = spectrogram(samples, columns);
    const picture = new ImageData(columns, SIZE / 2);
    for (let x = 0; x < columns; x += 1) {
      for (let y = 0; y < SIZE / 2; y += 1) {
        const place = 4 * ((SIZE / 2 - 1 - y) * columns + x);
        picture.data.set([...colour(1 + levels[x * (SIZE / 2) + y] / RANGE), 255], place);
      }
    }
    const small = Object.assign(document.createElement("canvas"), { width: columns, height: SIZE / 2 });
    small.getContext("2d").putImageData(picture, 0, 0);
    const context = canvas.getContext("2d");
    context.drawImage(small, 0, 0, canvas.width, canvas.height);
    const placeOf = (hz) => canvas.height * (1 - Math.log(hz / LOW) / Math.log(HIGH / LOW));
    Object.assign(context, { strokeStyle: "#7ff6ff", lineWidth: 3, lineJoin: "round" });
    context.beginPath();
    track.forEach((hz, n) => {
      if (!hz) return;
      const x = ((n * 160 + 320) / samples.length) * canvas.width;
      if (n && track[n - 1] && Math.abs(Math.log2(hz / track[n - 1])) < 0.3) context.lineTo(x, placeOf(hz));
      else context.moveTo(x - 1, placeOf(hz));
      context.lineTo(x + 1, placeOf(hz));
    });
    context.stroke();
  };
  const draw = async (box, url) => {
    const words = element("small", "");
    try {
      const whole = await decode(url);
      const samples = whole.subarray(0, LONGEST * RATE);
      const track = pitch(samples);
      const voiced = track.filter((hz) => hz).sort((a, b) => a - b);
      const median = voiced[voiced.length >> 1];
      const canvas = Object.assign(document.createElement("canvas"), { width: 640, height: 160 });
      paint(canvas, samples, track);
      const cut = whole.length > samples.length ? `, the first ${LONGEST} s drawn` : "";
      words.textContent = `${(whole.length / RATE).toFixed(2)} s${cut}, ${median ? `median pitch ${median.toFixed(0)} Hz` : "no voice"}`;
      canvas.setAttribute("role", "img");
      canvas.setAttribute("aria-label", `spectrogram and pitch: ${words.textContent}`);
      box.append(canvas);
    } catch (error) {
      words.textContent = `no spectrogram: ${error.message || "the sound cannot be decoded"}`;
    }
    box.append(words);
    box.dataset.drawn = "yes";
  };
  const waiting = new WeakMap();
  const observer = new IntersectionObserver((entries) => {
    for (const { target, isIntersecting } of entries) {
      if (!isIntersecting) continue;
      observer.unobserve(target);
      draw(target, waiting.get(target));
    }
  }, { rootMargin: "200px" });
  const view = (url) => {
    const box = element("div", undefined, "sound");
    waiting.set(box, url);
    observer.observe(box);
    return box;
  };
  return { view, decode, level, pitch, spectrogram };
})();
